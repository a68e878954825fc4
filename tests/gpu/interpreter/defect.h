// Defect: what a kernel did that it must not do. Thrown by the interpreter; the launch that it ends
// turns it into an error of the device.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace moesaic::ptx {

class Defect : public std::runtime_error {
 public:
  enum class Kind : uint8_t { kAddress, kAlignment, kOther };
  Defect(Kind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

}  // namespace moesaic::ptx
