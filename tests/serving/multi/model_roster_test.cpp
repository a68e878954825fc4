#include "serving/multi/model_roster.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace moesaic {
namespace {

using Kind = ModelRoster::Room::Kind;

constexpr int64_t kSecond = 1'000'000'000;

ModelRoster::Rules OnDemand(uint64_t least, uint64_t most) {
  ModelRoster::Rules rules;
  rules.need = {least, most};
  rules.may_leave = true;
  return rules;
}

void LoadIt(ModelRoster& roster, size_t model, uint64_t bytes, int64_t now_ns) {
  roster.BeginLoad(model, bytes);
  roster.Loaded(model, now_ns);
}

TEST(ModelRosterTest, AModelGetsWhatItNeedsOrWhatIsFree) {
  ModelRoster roster(100, {OnDemand(30, 50), OnDemand(30, 90)});
  const std::vector<uint8_t> busy(2, 0);
  ModelRoster::Room room = roster.RoomFor(0, busy);
  EXPECT_EQ(room.kind, Kind::kThere);
  EXPECT_EQ(room.bytes, 50u);
  LoadIt(roster, 0, 50, 1);
  EXPECT_EQ(roster.free_bytes(), 50u);
  EXPECT_EQ(roster.RoomFor(1, busy).bytes, 50u);
}

TEST(ModelRosterTest, MemoryIsFreeWhenTheEngineIsGone) {
  ModelRoster roster(100, {OnDemand(60, 60), OnDemand(60, 60)});
  const std::vector<uint8_t> busy(2, 0);
  LoadIt(roster, 0, 60, 1);
  ModelRoster::Room room = roster.RoomFor(1, busy);
  EXPECT_EQ(room.kind, Kind::kUnload);
  EXPECT_EQ(room.victim, 0u);
  roster.Unload(0);
  EXPECT_EQ(roster.models()[0].state, ModelState::kUnloaded);
  EXPECT_EQ(roster.RoomFor(1, busy).kind, Kind::kWait);
  EXPECT_EQ(roster.RoomFor(0, busy).kind, Kind::kWait);  // once more, while it still ends
  roster.Gone(60);
  EXPECT_EQ(roster.RoomFor(1, busy).kind, Kind::kThere);
}

TEST(ModelRosterTest, TheIdleOneUsedLongestAgoLeaves) {
  ModelRoster roster(100, {OnDemand(30, 30), OnDemand(30, 30), OnDemand(30, 30), OnDemand(30, 30)});
  for (size_t i = 0; i < 3; ++i) LoadIt(roster, i, 30, 1);
  roster.Use(0, 30);
  roster.Use(1, 10);
  roster.Use(2, 20);
  EXPECT_EQ(roster.RoomFor(3, std::vector<uint8_t>{0, 0, 0, 0}).victim, 1u);
  EXPECT_EQ(roster.RoomFor(3, std::vector<uint8_t>{0, 1, 0, 0}).victim, 2u);
  EXPECT_EQ(roster.RoomFor(3, std::vector<uint8_t>{1, 1, 1, 0}).victim, 1u);
}

TEST(ModelRosterTest, PinnedModelsAndThoseOfTheStartStay) {
  std::vector<ModelRoster::Rules> rules(3, OnDemand(50, 50));
  rules[0].pin = true;
  rules[1].may_leave = false;
  ModelRoster roster(100, rules);
  LoadIt(roster, 0, 50, 1);
  LoadIt(roster, 1, 50, 1);
  EXPECT_EQ(roster.RoomFor(2, std::vector<uint8_t>(3, 0)).kind, Kind::kTooLittle);
}

TEST(ModelRosterTest, NobodyIsUnloadedInVain) {
  ModelRoster roster(100, {OnDemand(20, 20), OnDemand(20, 70), OnDemand(90, 90)});
  roster.BeginLoad(1, 70);  // a load in progress cannot leave
  LoadIt(roster, 0, 20, 1);
  EXPECT_EQ(roster.RoomFor(2, std::vector<uint8_t>(3, 0)).kind, Kind::kTooLittle);
  roster.Loaded(1, 2);
  EXPECT_EQ(roster.RoomFor(2, std::vector<uint8_t>(3, 0)).kind, Kind::kUnload);
}

TEST(ModelRosterTest, AFailedLoadGivesItsMemoryBack) {
  ModelRoster roster(100, {OnDemand(40, 80)});
  roster.BeginLoad(0, 80);
  roster.Failed(0, "no file");
  EXPECT_EQ(roster.free_bytes(), 100u);
  EXPECT_EQ(roster.models()[0].why_failed, "no file");
  roster.BeginLoad(0, 80);
  EXPECT_EQ(roster.models()[0].why_failed, "");
  roster.Failed(0, "late", true);  // with an engine to end
  EXPECT_EQ(roster.free_bytes(), 20u);
  roster.Gone(80);
  EXPECT_EQ(roster.free_bytes(), 100u);
}

TEST(ModelRosterTest, IdleModelsAreDueInTheirOrder) {
  std::vector<ModelRoster::Rules> rules(3, OnDemand(10, 10));
  rules[0].idle_ns = 60 * kSecond;
  rules[1].idle_ns = 60 * kSecond;
  rules[1].pin = true;
  ModelRoster roster(100, rules);
  EXPECT_EQ(roster.NextIdleNs(), ModelRoster::kNever);
  for (size_t i = 0; i < 3; ++i) LoadIt(roster, i, 10, 5 * kSecond);
  EXPECT_EQ(roster.NextIdleNs(), 65 * kSecond);
  roster.Use(0, 10 * kSecond);
  EXPECT_EQ(roster.NextIdleNs(), 70 * kSecond);
  EXPECT_FALSE(roster.IdleAt(70 * kSecond - 1).has_value());
  EXPECT_EQ(roster.IdleAt(70 * kSecond), 0u);
  roster.Use(2, 11 * kSecond, 3 * kSecond);  // a request's own wish
  EXPECT_EQ(roster.NextIdleNs(), 14 * kSecond);
  roster.Use(2, 12 * kSecond);
  roster.Use(0, 12 * kSecond, ModelRoster::kNever);
  EXPECT_EQ(roster.NextIdleNs(), ModelRoster::kNever);
}

}  // namespace
}  // namespace moesaic
