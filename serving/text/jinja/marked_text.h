// MarkedText: UTF-8 bytes that remember which of them came from the caller's input.
//
// A chat template mixes its own text, where "<|im_end|>" is a control token, with message content,
// where the same ten characters are only characters. Every operation of the template language
// builds its result from slices of its operands, so the marks survive to the rendered prompt.
// A plain value type: copies are deep, const access is safe from several threads.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic::jinja {

class MarkedText {
 public:
  // A maximal run of bytes [begin, end) that came from the input.
  struct Span {
    size_t begin;
    size_t end;
    bool operator==(const Span&) const = default;
  };

  MarkedText() = default;
  explicit MarkedText(std::string bytes, bool from_input = false);

  const std::string& bytes() const { return bytes_; }
  size_t size_bytes() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // What the text takes in memory: marks that change with every byte take more than the bytes.
  size_t memory_bytes() const { return bytes_.size() + input_spans_.size() * sizeof(Span); }
  // Sorted, disjoint, not touching each other.
  const std::vector<Span>& input_spans() const { return input_spans_; }
  bool HasInput() const { return !input_spans_.empty(); }

  // Whether the byte at `offset` came from the input; false past the end.
  bool FromInput(size_t offset) const;

  void Append(std::string_view bytes, bool from_input);
  void Append(const MarkedText& other) { AppendSlice(other, 0, other.size_bytes()); }
  // Bytes [begin, end) of `other`, which is another object, with their marks.
  void AppendSlice(const MarkedText& other, size_t begin, size_t end);
  MarkedText Slice(size_t begin, size_t end) const;

 private:
  void AddSpan(size_t begin, size_t end);

  std::string bytes_;
  std::vector<Span> input_spans_;
};

}  // namespace moesaic::jinja
