#include "prefetch/predict/predictor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/predict/blend_predictor.h"
#include "tracer/routing_trace.h"
#include "tracer/state_section.h"

namespace moesaic {
namespace {

// All but the one that needs a model's routers.
std::vector<std::string> Names() {
  std::vector<std::string> names = PredictorNames();
  std::erase(names, "next-gate");
  return names;
}

// One iteration of one token; experts[layer] is what it uses there.
void Iterate(Predictor& predictor, int request, const std::vector<std::vector<int32_t>>& experts,
             int32_t token = Predictor::kUnknownToken) {
  predictor.BeginIteration(request, token, 1);
  for (size_t layer = 0; layer < experts.size(); ++layer) {
    predictor.Observe(request, static_cast<int>(layer), experts[layer]);
  }
}

std::vector<float> Predict(Predictor& predictor, int request, int distance, int experts) {
  std::vector<float> probability(static_cast<size_t>(experts), -1.0f);
  predictor.Predict(request, distance, probability);
  return probability;
}

size_t Largest(const std::vector<float>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

std::string TestName(const testing::TestParamInfo<std::string>& parameter) {
  std::string name = parameter.param;
  std::erase(name, '-');
  return name;
}

class EveryPredictor : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Names, EveryPredictor, testing::ValuesIn(Names()), TestName);

TEST_P(EveryPredictor, StatesProbabilitiesAtEveryMoment) {
  const PredictorShape shape{5, 12, 3, 2};
  const auto predictor = MakePredictor(GetParam(), shape, SelectKernels());
  EXPECT_EQ(predictor->name(), GetParam());
  std::mt19937 random(7);
  const auto check = [&](int request) {
    for (int distance = 1; distance <= shape.num_layers; ++distance) {
      for (const float p : Predict(*predictor, request, distance, shape.num_experts)) {
        EXPECT_TRUE(p >= 0 && p <= 1) << p;
      }
    }
  };
  for (int round = 0; round < 3; ++round) {
    predictor->BeginRequest(0);
    predictor->BeginRequest(1);
    for (int iteration = 0; iteration < 6; ++iteration) {
      for (int request = 0; request < 2; ++request) {
        // The first iteration is a prefill of several rows.
        const int64_t rows = iteration == 0 ? 4 : 1;
        predictor->BeginIteration(request, rows == 1 ? 3 : Predictor::kUnknownToken, rows);
        check(request);
        for (int layer = 0; layer < shape.num_layers; ++layer) {
          std::vector<int32_t> experts;
          for (int64_t row = 0; row < rows; ++row) {
            const auto first = static_cast<int32_t>(random() % 10);
            for (int32_t k = 0; k < 3; ++k) experts.push_back(first + k);
          }
          predictor->Observe(request, layer, experts);
          check(request);
        }
      }
    }
    predictor->EndRequest(0);
    predictor->EndRequest(1);
  }
  if (GetParam() != "dependency") {
    EXPECT_GT(predictor->memory_bytes(), 0u);
  }
}

TEST_P(EveryPredictor, FindsWhatNeverChanges) {
  const PredictorShape shape{4, 16, 2, 1};
  const auto predictor = MakePredictor(GetParam(), shape, SelectKernels());
  const std::vector<std::vector<int32_t>> experts = {{1, 2}, {5, 9}, {0, 15}, {7, 8}};
  for (int request = 0; request < 3; ++request) {
    predictor->BeginRequest(0);
    for (int iteration = 0; iteration < 60; ++iteration) Iterate(*predictor, 0, experts, 11);
    predictor->EndRequest(0);
  }
  predictor->BeginRequest(0);
  Iterate(*predictor, 0, experts, 11);
  predictor->BeginIteration(0, 11, 1);
  predictor->Observe(0, 0, experts[0]);
  for (int distance = 1; distance <= 3; ++distance) {
    const std::vector<float> p = Predict(*predictor, 0, distance, shape.num_experts);
    if (GetParam() == "dependency") {  // says the same of all
      EXPECT_EQ(p, std::vector<float>(p.size(), 1.0f));
      continue;
    }
    const std::vector<int32_t>& used = experts[static_cast<size_t>(distance)];
    for (int j = 0; j < shape.num_experts; ++j) {
      if (j == used[0] || j == used[1]) continue;
      EXPECT_LT(p[static_cast<size_t>(j)], p[static_cast<size_t>(used[0])]);
      EXPECT_LT(p[static_cast<size_t>(j)], p[static_cast<size_t>(used[1])]);
    }
  }
}

// What a request does, made from its number: the same for any predictor that is shown it.
void Serve(Predictor& predictor, unsigned seed, const PredictorShape& shape,
           std::vector<float>* stated = nullptr) {
  std::mt19937 random(seed);
  predictor.BeginRequest(0);
  for (int iteration = 0; iteration < 40; ++iteration) {
    const int64_t rows = iteration == 0 ? 3 : 1;
    predictor.BeginIteration(
        0, rows == 1 ? static_cast<int32_t>(random() % 50) : Predictor::kUnknownToken, rows);
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      std::vector<int32_t> experts;
      for (int64_t row = 0; row < rows; ++row) {
        const auto first = static_cast<int32_t>(random() % 6);
        experts.insert(experts.end(), {first, first + 1 + layer % 2});
      }
      predictor.Observe(0, layer, experts);
      if (stated == nullptr) continue;
      for (int distance = 1; distance <= shape.num_layers; ++distance) {
        const std::vector<float> p = Predict(predictor, 0, distance, shape.num_experts);
        stated->insert(stated->end(), p.begin(), p.end());
      }
    }
  }
  predictor.EndRequest(0);
}

std::vector<std::vector<std::byte>> Save(Predictor& predictor) {
  std::vector<std::vector<std::byte>> saved;
  for (const StateSection* section : predictor.Sections()) saved.push_back(section->Save());
  return saved;
}

// A restored predictor goes on as the one that was saved would have, to the last bit.
TEST_P(EveryPredictor, GoesOnFromWhatWasSaved) {
  const PredictorShape shape{5, 10, 2, 1};
  const auto saved = MakePredictor(GetParam(), shape, SelectKernels());
  for (unsigned request = 0; request < 5; ++request) Serve(*saved, request, shape);
  const auto restored = MakePredictor(GetParam(), shape, SelectKernels());
  const auto fresh = MakePredictor(GetParam(), shape, SelectKernels());
  const auto bytes = Save(*saved);
  for (size_t i = 0; i < bytes.size(); ++i) {
    StateSection* section = restored->Sections()[i];
    EXPECT_EQ(section->name(), saved->Sections()[i]->name());
    section->Load(section->version(), bytes[i]);
  }
  std::vector<float> from_saved;
  std::vector<float> from_restored;
  std::vector<float> from_fresh;
  for (unsigned request = 5; request < 8; ++request) {
    Serve(*saved, request, shape, &from_saved);
    Serve(*restored, request, shape, &from_restored);
    Serve(*fresh, request, shape, &from_fresh);
  }
  EXPECT_EQ(from_restored, from_saved);
  EXPECT_EQ(Save(*restored), Save(*saved));
  // Who has nothing to keep knows no more than a fresh one.
  const bool learns = !saved->Sections().empty();
  if (GetParam() == "dependency" || GetParam() == "request-eam") {
    EXPECT_FALSE(learns);
  }
  EXPECT_EQ(from_fresh != from_saved, learns);
}

TEST_P(EveryPredictor, RefusesWhatDoesNotFitAndStaysAsItWas) {
  const PredictorShape shape{3, 8, 2, 1};
  const auto predictor = MakePredictor(GetParam(), shape, SelectKernels());
  const auto other = MakePredictor(GetParam(), {3, 9, 2, 1}, SelectKernels());
  Serve(*predictor, 1, shape);
  const auto before = Save(*predictor);
  for (size_t i = 0; i < before.size(); ++i) {
    StateSection& section = *predictor->Sections()[i];
    const std::vector<std::byte>& good = before[i];
    EXPECT_THROW(section.Load(section.version() + 1, good), Error);
    if (GetParam() != "recency") {  // whose ages are those of any model
      EXPECT_THROW(other->Sections()[i]->Load(section.version(), good), Error);
    }
    for (size_t bytes = 0; bytes < good.size(); bytes += 1 + good.size() / 97) {
      EXPECT_THROW(section.Load(section.version(), std::span(good).first(bytes)), Error);
    }
    std::vector<std::byte> longer = good;
    longer.push_back(std::byte{0});
    EXPECT_THROW(section.Load(section.version(), longer), Error);
  }
  EXPECT_EQ(Save(*predictor), before);
}

// In layer 1 a request uses expert 8 + i when it used expert i in layer 0: no count per layer can
// know.
TEST(PredictorTest, PairsOfLayersAreLearned) {
  for (const std::string name : {"blend", "transition"}) {
    const PredictorShape shape{3, 16, 1, 1};
    const auto predictor = MakePredictor(name, shape, SelectKernels());
    std::mt19937 random(3);
    predictor->BeginRequest(0);
    int right = 0;
    for (int iteration = 0; iteration < 1200; ++iteration) {
      const auto i = static_cast<int32_t>(random() % 8);
      predictor->BeginIteration(0, Predictor::kUnknownToken, 1);
      predictor->Observe(0, 0, std::vector<int32_t>{i});
      if (iteration >= 1000) {
        right += Largest(Predict(*predictor, 0, 1, 16)) == static_cast<size_t>(i) + 8;
        right += Largest(Predict(*predictor, 0, 2, 16)) == static_cast<size_t>(i);
      }
      predictor->Observe(0, 1, std::vector<int32_t>{8 + i});
      predictor->Observe(0, 2, std::vector<int32_t>{i});
    }
    EXPECT_GT(right, 390) << name;
  }
}

TEST(PredictorTest, BlendKnowsTokens) {
  const PredictorShape shape{2, 32, 1, 1};
  BlendPredictor predictor(shape, SelectKernels());
  std::mt19937 random(5);
  predictor.BeginRequest(0);
  int right = 0;
  for (int iteration = 0; iteration < 2000; ++iteration) {
    const auto token = static_cast<int32_t>(random() % 20);
    predictor.BeginIteration(0, token, 1);
    if (iteration >= 1800) {
      right += Largest(Predict(predictor, 0, 1, 32)) == static_cast<size_t>(token) + 5;
    }
    predictor.Observe(0, 0, std::vector<int32_t>{token + 5});
    predictor.Observe(0, 1, std::vector<int32_t>{0});
  }
  EXPECT_GT(right, 190);
}

TEST(PredictorTest, BlendStatesWhatHappens) {
  // Expert 3 is used with probability 0.7, else expert 4: nothing to see it coming by.
  const PredictorShape shape{2, 8, 1, 1};
  BlendPredictor predictor(shape, SelectKernels());
  std::mt19937 random(9);
  predictor.BeginRequest(0);
  double stated = 0;
  double happened = 0;
  for (int iteration = 0; iteration < 6000; ++iteration) {
    const int32_t expert = random() % 10 < 7 ? 3 : 4;
    predictor.BeginIteration(0, Predictor::kUnknownToken, 1);
    predictor.Observe(0, 0, std::vector<int32_t>{0});
    if (iteration >= 2000) {
      stated += static_cast<double>(Predict(predictor, 0, 1, 8)[3]);
      happened += expert == 3 ? 1 : 0;
    }
    predictor.Observe(0, 1, std::vector<int32_t>{expert});
  }
  EXPECT_NEAR(stated / 4000, happened / 4000, 0.02);
}

TEST(PredictorTest, OracleKnows) {
  const RoutingTrace trace = ReadRoutingTrace(std::filesystem::path(MOESAIC_TEST_DATA_DIR) /
                                              "traces" / "gpt_oss_20b_part.jsonl.gz");
  const std::vector<int> order = {3, 1};
  const auto oracle = MakeOraclePredictor(trace, order);
  oracle->BeginRequest(0);
  const TraceSequence& sequence = trace.sequences[3];
  const auto expect = [&](int64_t token, int layer, const TraceSequence& of, int distance) {
    const std::vector<float> p = Predict(*oracle, 0, distance, 32);
    const auto used = trace.Experts(of, token, layer);
    for (uint16_t j = 0; j < 32; ++j) {
      EXPECT_EQ(p[j], std::find(used.begin(), used.end(), j) != used.end() ? 1.0f : 0.0f);
    }
  };
  const std::vector<int32_t> any = {0, 1, 2, 3};
  oracle->BeginIteration(0, Predictor::kUnknownToken, 1);
  expect(0, 0, sequence, 1);
  oracle->Observe(0, 0, any);
  expect(0, 3, sequence, 3);
  for (int layer = 1; layer < 24; ++layer) oracle->Observe(0, layer, any);
  expect(1, 4, sequence, 5);
  for (int token = 1; token < 96; ++token) oracle->BeginIteration(0, Predictor::kUnknownToken, 1);
  for (int layer = 0; layer < 24; ++layer) oracle->Observe(0, layer, any);
  expect(0, 0, trace.sequences[1], 1);  // the next request
}

TEST(PredictorTest, UnknownNamesAreRefusedWithTheKnownOnes) {
  try {
    MakePredictor("psychic", {2, 4, 1, 1}, SelectKernels());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("transition"), std::string::npos);
  }
}

}  // namespace
}  // namespace moesaic
