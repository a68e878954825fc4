#include "tests/serving/http/server_fixture.h"

#include <fmt/format.h>

#include <thread>

#include "serving/api/chat_format.h"
#include "serving/api/replay_store.h"
#include "serving/text/chat_template.h"

namespace moesaic {
namespace {

constexpr char kTemplate[] =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
    "{% if tools %}T{{ tools | length }}{% endif %}{% if add_generation_prompt %}[assistant]{% "
    "endif %}";

}  // namespace

void ServerTest::Start(bool with_model) {
  server_ = std::make_unique<Server>(options_, metrics_);
  server_->Start();
  if (with_model) SetModel();
}

void ServerTest::SetModel() {
  engine_ = std::make_shared<TestEngine>(*model_tokenizer_, engine_options_);
  ServedModel model;
  model.names = {"org/test", "alias"};
  model.engine = engine_;
  model.chat_template = std::make_shared<const ChatTemplate>(
      "test", chat_template_.empty() ? kTemplate : chat_template_, "",
      ChatTemplate::SpecialTokens());
  model.created_unix_s = 77;
  model.chat_format = MakeChatFormat(model.chat_template.get(), *model_tokenizer_, "auto", "auto");
  model.replay = std::make_shared<ReplayStore>(options_.replay_bytes);
  server_->SetModels({std::move(model)});
}

double ServerTest::Metric(const std::string& series) {
  const std::string text = metrics_.Serialize();
  const size_t at = text.find("\n" + series + " ");
  if (at == std::string::npos) return -1;
  return std::stod(text.substr(at + series.size() + 2));
}

void ServerTest::WaitForMetric(const std::string& series, double value) {
  while (Metric(series) != value) std::this_thread::yield();
}

void ServerTest::WaitForMetricAtLeast(const std::string& series, double value) {
  while (Metric(series) < value) std::this_thread::yield();
}

std::string ServerTest::Completion(int max_tokens, const std::string& more) {
  return fmt::format(R"({{"model":"org/test","prompt":"abc","max_tokens":{}{}}})", max_tokens,
                     more);
}

std::string ServerTest::Chat(int max_tokens, const std::string& more) {
  return fmt::format(
      R"({{"model":"org/test","messages":[{{"role":"user","content":"hi"}}],"max_tokens":{}{}}})",
      max_tokens, more);
}

}  // namespace moesaic
