// SettingSection: where a room registers its settings, beside the option struct that they set. A
// setting is an option that the environment and YAML files give as well as a flag.
//
//   SettingSection disk(table, "Experts on disk", visible);
//   disk.Add({.name = "io-depth",
//             .target = &options.io_depth,
//             .help = "Reads in flight. 0: measured.",
//             .min = 0,
//             .max = 1024});
#pragma once

#include <string>
#include <utility>

#include "core/config/option_table.h"

namespace moesaic {

class SettingSection {
 public:
  // `visible`: they are flags of this command. Others may still stand in a file or the environment
  // that several commands share. The table outlives this.
  SettingSection(OptionTable& table, std::string heading, bool visible)
      : table_(table), heading_(std::move(heading)), visible_(visible) {}

  void Add(Option option) const {
    option.section = heading_;
    option.settable_outside = true;
    option.hidden = !visible_;
    table_.Add(std::move(option));
  }

 private:
  OptionTable& table_;
  const std::string heading_;
  const bool visible_;
};

}  // namespace moesaic
