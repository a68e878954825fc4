#include "core/base/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/check.h"

namespace moesaic {
namespace {

// libstdc++ 12 has std::atomic<double>::fetch_add only for GCC's own builtins; this is the same
// loop.
void AtomicAdd(std::atomic<double>& target, double amount) {
  double old = target.load(std::memory_order_relaxed);
  while (!target.compare_exchange_weak(old, old + amount, std::memory_order_relaxed)) {
  }
}

bool IsValidName(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == ':';
  });
}

void AppendEscaped(std::string_view text, bool escape_quotes, std::string& out) {
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && escape_quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

// Shortest text that reads back as the same number; Prometheus writes infinities its own way.
std::string FormatValue(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// {a="1",b="2"}, or nothing without labels. `le` is appended when not empty.
std::string FormatLabels(const MetricLabels& labels, std::string_view le = {}) {
  if (labels.empty() && le.empty()) return {};
  std::string out = "{";
  for (const auto& [name, value] : labels) {
    if (out.size() > 1) out += ',';
    out += name;
    out += "=\"";
    AppendEscaped(value, true, out);
    out += '"';
  }
  if (!le.empty()) {
    if (out.size() > 1) out += ',';
    out += fmt::format("le=\"{}\"", le);
  }
  out += '}';
  return out;
}

}  // namespace

void Counter::Add(double amount) {
  CHECK(amount >= 0);  // a counter that falls makes every rate() over it wrong
  AtomicAdd(value_, amount);
}

void Gauge::Add(double amount) { AtomicAdd(value_, amount); }

Histogram::Histogram(std::vector<double> upper_bounds)
    : upper_bounds_(std::move(upper_bounds)), counts_(upper_bounds_.size() + 1) {
  CHECK(std::is_sorted(upper_bounds_.begin(), upper_bounds_.end(), std::less_equal<>()));
}

void Histogram::Observe(double value) {
  if (std::isnan(value)) return;  // would poison the sum for good
  const auto bucket = std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value);
  counts_[static_cast<size_t>(bucket - upper_bounds_.begin())].fetch_add(1,
                                                                         std::memory_order_relaxed);
  AtomicAdd(sum_, value);
}

std::vector<uint64_t> Histogram::counts() const {
  std::vector<uint64_t> result;
  result.reserve(counts_.size());
  for (const auto& count : counts_) result.push_back(count.load(std::memory_order_relaxed));
  return result;
}

// One name with its help text, and a metric per combination of labels. Exactly one of the three
// maps is used. Metrics are held by pointer, so that references stay valid while the maps grow.
struct MetricsRegistry::Family {
  Kind kind;
  std::string help;
  std::map<std::string, MetricLabels> labels;  // by formatted text, which is also the order written
  std::map<std::string, std::unique_ptr<Counter>> counters;
  std::map<std::string, std::unique_ptr<Gauge>> gauges;
  std::map<std::string, std::unique_ptr<Histogram>> histograms;

  const char* KindName() const {
    switch (kind) {
      case Kind::kCounter:
        return "counter";
      case Kind::kGauge:
        return "gauge";
      case Kind::kHistogram:
        break;
    }
    return "histogram";
  }

  void Append(std::string_view name, std::string& out) const {
    out += fmt::format("# HELP {} ", name);
    AppendEscaped(help, false, out);
    out += fmt::format("\n# TYPE {} {}\n", name, KindName());
    for (const auto& [text, counter] : counters) {
      out += fmt::format("{}{} {}\n", name, text, FormatValue(counter->value()));
    }
    for (const auto& [text, gauge] : gauges) {
      out += fmt::format("{}{} {}\n", name, text, FormatValue(gauge->value()));
    }
    for (const auto& [text, histogram] : histograms) {
      const MetricLabels& label_list = labels.at(text);
      const std::vector<uint64_t> counts = histogram->counts();
      uint64_t cumulative = 0;
      for (size_t i = 0; i < counts.size(); ++i) {
        cumulative += counts[i];
        const std::string le = i < histogram->upper_bounds().size()
                                   ? FormatValue(histogram->upper_bounds()[i])
                                   : std::string("+Inf");
        out += fmt::format("{}_bucket{} {}\n", name, FormatLabels(label_list, le), cumulative);
      }
      out += fmt::format("{}_sum{} {}\n", name, text, FormatValue(histogram->sum()));
      out += fmt::format("{}_count{} {}\n", name, text, cumulative);
    }
  }
};

MetricsRegistry::MetricsRegistry() = default;
MetricsRegistry::MetricsRegistry(MetricsRegistry& all, MetricLabels labels)
    : all_(&all), labels_(std::move(labels)) {}
MetricsRegistry::~MetricsRegistry() = default;

MetricLabels MetricsRegistry::With(const MetricLabels& labels) const {
  MetricLabels both = labels_;
  both.insert(both.end(), labels.begin(), labels.end());
  return both;
}

MetricsRegistry::Family& MetricsRegistry::GetFamily(std::string_view name, std::string_view help,
                                                    Kind kind) {
  CHECK(IsValidName(name));
  auto found = families_.find(name);
  if (found == families_.end()) {
    auto family = std::make_unique<Family>();
    family->kind = kind;
    family->help = std::string(help);
    found = families_.emplace(std::string(name), std::move(family)).first;
  }
  CHECK(found->second->kind == kind);
  return *found->second;
}

Counter& MetricsRegistry::GetCounter(std::string_view name, std::string_view help,
                                     const MetricLabels& labels) {
  if (all_ != nullptr) return all_->GetCounter(name, help, With(labels));
  MutexLock lock(mutex_);
  Family& family = GetFamily(name, help, Kind::kCounter);
  auto& slot = family.counters[FormatLabels(labels)];
  if (slot == nullptr) slot = std::make_unique<Counter>();
  return *slot;
}

Gauge& MetricsRegistry::GetGauge(std::string_view name, std::string_view help,
                                 const MetricLabels& labels) {
  if (all_ != nullptr) return all_->GetGauge(name, help, With(labels));
  MutexLock lock(mutex_);
  Family& family = GetFamily(name, help, Kind::kGauge);
  auto& slot = family.gauges[FormatLabels(labels)];
  if (slot == nullptr) slot = std::make_unique<Gauge>();
  return *slot;
}

Histogram& MetricsRegistry::GetHistogram(std::string_view name, std::string_view help,
                                         std::vector<double> upper_bounds,
                                         const MetricLabels& labels) {
  if (all_ != nullptr) {
    return all_->GetHistogram(name, help, std::move(upper_bounds), With(labels));
  }
  MutexLock lock(mutex_);
  Family& family = GetFamily(name, help, Kind::kHistogram);
  const std::string text = FormatLabels(labels);
  auto& slot = family.histograms[text];
  if (slot == nullptr) {
    slot = std::make_unique<Histogram>(std::move(upper_bounds));
    family.labels[text] = labels;
  }
  return *slot;
}

std::string MetricsRegistry::Serialize() const {
  if (all_ != nullptr) return all_->Serialize();
  MutexLock lock(mutex_);
  std::string out;
  for (const auto& [name, family] : families_) family->Append(name, out);
  return out;
}

}  // namespace moesaic
