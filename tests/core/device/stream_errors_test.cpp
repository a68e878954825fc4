// Streams, events and host functions are played by hand: what a device passes when is said here.
#include "core/device/stream_errors.h"

#include <gtest/gtest.h>

#include <string>

namespace moesaic {
namespace {

Error Oops(const char* what) { return Error(ErrorKind::kIo, what); }

std::string FirstText(const ErrorCausesPtr& causes) {
  const Error* error = FirstError(causes);
  return error != nullptr ? error->what() : "";
}

TEST(StreamErrorsTest, WellUntilSomethingFails) {
  StreamErrors stream;
  const ErrorCausesPtr before = stream.causes();
  EXPECT_EQ(stream.known(), nullptr);
  stream.Add(Oops("a"));
  stream.Add(Oops("b"));
  EXPECT_STREQ(stream.known()->what(), "a");  // the first in stream order
  EXPECT_EQ(FirstError(before), nullptr);
  const ErrorCausesPtr after = stream.causes();
  stream.Clear();
  EXPECT_EQ(stream.known(), nullptr);
  EXPECT_EQ(FirstText(after), "a");  // an event that was recorded in between
}

TEST(StreamErrorsTest, AHostFunctionIsJudgedWhenItHasRun) {
  StreamErrors stream;
  const auto outcome = stream.AddPending();
  const ErrorCausesPtr event = stream.causes();
  EXPECT_EQ(stream.known(), nullptr);
  stream.Clear();
  const ErrorCausesPtr later = stream.causes();
  outcome->Fail(Oops("thrown"));
  EXPECT_EQ(FirstText(event), "thrown");
  EXPECT_EQ(FirstError(later), nullptr);
  EXPECT_EQ(stream.known(), nullptr);
}

TEST(StreamErrorsTest, AWaitBringsWhatTheEventHas) {
  StreamErrors writer;
  StreamErrors reader;
  const auto outcome = writer.AddPending();
  const ErrorCausesPtr event = writer.causes();
  writer.Add(Oops("behind the event"));
  reader.Add(event);
  reader.Add(event);  // a second wait
  const ErrorCausesPtr own = reader.causes();
  EXPECT_EQ(own->size(), 1u);
  EXPECT_EQ(reader.known(), nullptr);
  outcome->Fail(Oops("copy"));
  EXPECT_EQ(FirstText(own), "copy");
  EXPECT_STREQ(reader.known()->what(), "copy");
  reader.Add(ErrorCausesPtr());
  EXPECT_STREQ(reader.known()->what(), "copy");
}

TEST(StreamErrorsTest, ForgetsWhatWentWell) {
  StreamErrors stream;
  std::vector<std::shared_ptr<ErrorCause>> outcomes;
  for (int i = 0; i < 1000; ++i) {
    outcomes.push_back(stream.AddPending());
    if (i >= 3) outcomes[static_cast<size_t>(i - 3)]->Succeed();
    EXPECT_LE(stream.causes()->size(), 5u);
  }
  StreamErrors other;
  other.Add(stream.causes());
  EXPECT_EQ(other.causes()->size(), 3u);
}

}  // namespace
}  // namespace moesaic
