// CHECK: an invariant of this program. A failure is a bug; it prints the values and aborts.
#pragma once

#include <fmt/format.h>

#include <string>

namespace moesaic::internal {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression,
                              const std::string& detail);

template <typename A, typename B>
[[noreturn]] void CheckOpFailed(const char* file, int line, const char* expression, const A& a,
                                const B& b) {
  CheckFailed(file, line, expression, fmt::format("{} against {}", a, b));
}

}  // namespace moesaic::internal

#define CHECK(condition)                                                               \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::moesaic::internal::CheckFailed(__FILE__, __LINE__, #condition, std::string()); \
  } while (0)

#define MOESAIC_CHECK_OP(op, a, b)                                                        \
  do {                                                                                    \
    const auto& check_a_ = (a);                                                           \
    const auto& check_b_ = (b);                                                           \
    if (!(check_a_ op check_b_)) [[unlikely]]                                             \
      ::moesaic::internal::CheckOpFailed(__FILE__, __LINE__, #a " " #op " " #b, check_a_, \
                                         check_b_);                                       \
  } while (0)

#define CHECK_EQ(a, b) MOESAIC_CHECK_OP(==, a, b)
#define CHECK_NE(a, b) MOESAIC_CHECK_OP(!=, a, b)
#define CHECK_LT(a, b) MOESAIC_CHECK_OP(<, a, b)
#define CHECK_LE(a, b) MOESAIC_CHECK_OP(<=, a, b)
#define CHECK_GT(a, b) MOESAIC_CHECK_OP(>, a, b)
#define CHECK_GE(a, b) MOESAIC_CHECK_OP(>=, a, b)
