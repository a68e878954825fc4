// SharedSimulationJob: what `moesaic simulate` is asked about several models, and what it answers:
// options by name, requests made of a file of arrivals, each way of sharing the memory simulated.
//
// Owned and used by one thread; the table that its options are in may not outlive it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/memory_size.h"
#include "core/config/option_table.h"
#include "serving/simulate/shared_simulator.h"

namespace moesaic {

class SharedSimulationJob {
 public:
  // Adds the options that only several models have, bound to this, to the table; called once.
  void AddOptions(OptionTable& table);

  // What a single trace is served with, too; lists have an entry for all models or one for each.
  struct Common {
    std::vector<std::string> traces;
    std::vector<double> layer_compute_us;
    std::string predictor;
    PrefetchOptions prefetch;
  };
  // Throws Error as its readers do, and kInvalidArgument for options that contradict each other.
  nlohmann::ordered_json Run(const Common& common) const;

 private:
  std::vector<SharedRequest> Requests(size_t models) const;

  std::string arrivals_;
  std::string shares_;
  std::string expert_compute_us_ = "0";
  std::string expert_size_;
  std::string other_size_ = "0";
  std::string load_ms_ = "0";
  MemorySize memory_;
  MemorySize min_experts_ = "5%";
  uint64_t link_rate_ = 1'000'000'000;
  int64_t most_requests_ = 0;
  int64_t skip_ = 0;
  int64_t seed_ = 1;
  int64_t most_prompt_ = 0;
  int64_t most_answer_ = 0;
  int64_t most_seqs_ = 64;
  double rate_ = 0;
  double warm_up_s_ = 0;
  bool preload_ = true;
};

// "700,900" as numbers from 0 on. Throws Error(kInvalidArgument) that names the option.
std::vector<double> ParseNumbers(const std::string& text, const std::string& option);

}  // namespace moesaic
