#include "functions/simulation_plot.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/human_units.h"

namespace rekindle::functions {
namespace {

constexpr double kLeft = 90, kWidth = 760, kHeight = 180, kTop = 70, kGap = 70;
// Okabe and Ito's colours, which colour-blind readers can tell apart.
constexpr std::array<const char*, 6> kColours{"#999999", "#E69F00", "#D55E00",
                                              "#0072B2", "#009E73", "#CC79A7"};

struct Panel {
  std::string title;
  std::function<double(const PolicyResult::Sample&)> value;
  std::function<std::string(double)> label;
  bool logarithmic = false;
};

std::string Bytes(double bytes) { return FormatBytes(static_cast<uint64_t>(bytes)); }

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

std::string Line(double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x1, y1,
                         x2, y2);
}

std::string Draw(const Panel& panel, double top, const SimulationResult& result) {
  double most = 1;
  size_t samples = 1;
  for (const PolicyResult& policy : result.policies) {
    samples = std::max(samples, policy.samples.size());
    for (const PolicyResult::Sample& sample : policy.samples) most = std::max(most, panel.value(sample));
  }
  if (panel.logarithmic) most = std::pow(10, std::max(1.0, std::ceil(std::log10(most))));
  // Of a logarithmic scale the lowest line is 0.
  auto height_of = [&](double value) {
    double share = panel.logarithmic ? std::log10(1 + value) / std::log10(1 + most) : value / most;
    return top + kHeight * (1 - share);
  };
  std::string svg = Text(kLeft, top - 8, "start", panel.title);
  for (int i = 0; i <= 4; ++i) {
    double value = panel.logarithmic ? (i == 0 ? 0 : std::pow(most, i / 4.0)) : most * i / 4;
    absl::StrAppend(&svg, Line(kLeft, height_of(value), kLeft + kWidth, height_of(value)),
                    Text(kLeft - 6, height_of(value) + 4, "end", panel.label(value)));
  }
  const double hours = static_cast<double>(samples * SimulationResult::kSampleMinutes) / 60;
  const double step = hours > 96 ? 24 : hours > 30 ? 12 : 3;
  for (double hour = 0; hour <= hours + 1e-6; hour += step) {
    double x = kLeft + kWidth * hour / hours;
    absl::StrAppend(&svg, Line(x, top, x, top + kHeight),
                    Text(x, top + kHeight + 16, "middle", absl::StrCat(hour, " h")));
  }
  for (size_t i = 0; i < result.policies.size(); ++i) {
    absl::StrAppendFormat(&svg, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"",
                          kColours[i % kColours.size()]);
    const auto& list = result.policies[i].samples;
    for (size_t at = 0; at < list.size(); ++at) {
      absl::StrAppendFormat(&svg, "%.1f,%.1f ",
                            kLeft + kWidth * static_cast<double>(at + 1) / static_cast<double>(samples),
                            height_of(panel.value(list[at])));
    }
    absl::StrAppend(&svg, "\"/>\n");
  }
  return svg;
}

}  // namespace

std::string PlotSvg(const SimulationResult& result, const SimulationOptions& options) {
  const std::vector<Panel> panels{
      {"Memory", [](const auto& sample) { return static_cast<double>(sample.memory_bytes); }, Bytes},
      {"Disk", [](const auto& sample) { return static_cast<double>(sample.disk_bytes); }, Bytes},
      {absl::StrFormat("Starts over %g ms in each %d minutes (logarithmic)", options.budgets.slow_start_ms,
                       SimulationResult::kSampleMinutes),
       [](const auto& sample) { return static_cast<double>(sample.slow_starts); },
       [](double value) { return absl::StrFormat("%.0f", value); }, true}};
  const double height = kTop + static_cast<double>(panels.size()) * (kHeight + kGap);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
      kLeft + kWidth + 30, height);
  absl::StrAppend(&svg,
                  Text(kLeft, 20, "start",
                       absl::StrFormat("%d invocations of %d functions, memory budget %s", result.invocations,
                                       result.functions, FormatBytes(options.budgets.memory_bytes))));
  for (size_t i = 0; i < result.policies.size(); ++i) {
    double x = kLeft + 110 * static_cast<double>(i);
    absl::StrAppendFormat(&svg, "<rect x=\"%.1f\" y=\"30\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                          kColours[i % kColours.size()]);
    absl::StrAppend(&svg, Text(x + 17, 41, "start", result.policies[i].policy));
  }
  for (size_t i = 0; i < panels.size(); ++i) {
    absl::StrAppend(&svg, Draw(panels[i], kTop + 10 + static_cast<double>(i) * (kHeight + kGap), result));
  }
  return svg + "</svg>\n";
}

}  // namespace rekindle::functions
