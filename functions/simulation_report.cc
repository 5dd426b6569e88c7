#include "functions/simulation_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/human_units.h"

namespace rekindle::functions {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, kStartLevels> kLevelNames{
    "warm",       "template",       "dependency_template", "image_ram",
    "image_disk", "dependency_ram", "dependency_disk",     "cold"};

uint64_t Count(const PolicyResult& policy, StartLevel level) {
  return policy.starts[static_cast<size_t>(level)];
}

uint64_t FromTemplate(const PolicyResult& policy) {
  return Count(policy, StartLevel::kTemplate) + Count(policy, StartLevel::kDependencyTemplate);
}

uint64_t FromImage(const PolicyResult& policy) {
  return Count(policy, StartLevel::kImageRam) + Count(policy, StartLevel::kImageDisk) +
         Count(policy, StartLevel::kDependencyRam) + Count(policy, StartLevel::kDependencyDisk);
}

double Share(uint64_t part, uint64_t of) {
  return of ? 100.0 * static_cast<double>(part) / static_cast<double>(of) : 0;
}

}  // namespace

std::string ReportText(const SimulationResult& result, const SimulationOptions& options) {
  std::string text = absl::StrFormat(
      "%d invocations of %d functions in %d applications, %d dependency images, %d day%s; memory %s, disk "
      "%s\n\n",
      result.invocations, result.functions, result.apps, result.dependencies, result.days,
      result.days == 1 ? "" : "s", FormatBytes(options.budgets.memory_bytes),
      options.budgets.disk_bytes == UINT64_MAX ? "unlimited" : FormatBytes(options.budgets.disk_bytes));
  absl::StrAppendFormat(&text, "%-9s %12s %11s %11s %11s %11s %8s %7s %7s %8s %9s %10s %10s %10s\n", "POLICY",
                        "WARM", "TEMPLATE", "IMAGE", "COLD", "SLOW", "SLOW %", "P50 ms", "P90 ms", "P99 ms",
                        "P99.9 ms", "MEMORY", "PEAK", "DISK");
  for (const PolicyResult& policy : result.policies) {
    absl::StrAppendFormat(
        &text, "%-9s %12d %11d %11d %11d %11d %8.4f %7.1f %7.1f %8.1f %9.1f %10s %10s %10s\n", policy.policy,
        Count(policy, StartLevel::kInstance), FromTemplate(policy), FromImage(policy),
        Count(policy, StartLevel::kCold), policy.slow_starts, Share(policy.slow_starts, result.invocations),
        policy.p50_ms, policy.p90_ms, policy.p99_ms, policy.p999_ms,
        FormatBytes(static_cast<uint64_t>(policy.mean_memory_bytes)), FormatBytes(policy.peak_memory_bytes),
        FormatBytes(policy.peak_disk_bytes));
  }
  absl::StrAppendFormat(&text, "\nSLOW: starts over %g ms. MEMORY: mean of the ends of minutes. ",
                        options.budgets.slow_start_ms);
  absl::StrAppend(&text,
                  "PEAK: of memory, at any moment, what ran beyond the budget too. DISK: the most at any "
                  "moment.\n");
  for (const PolicyResult& policy : result.policies) {
    if (policy.over_budget > 0) {
      absl::StrAppendFormat(&text, "%s: at %d starts what ran needed more than the memory there is.\n",
                            policy.policy, policy.over_budget);
    }
  }
  const PolicyResult* ours = nullptr;
  for (const PolicyResult& policy : result.policies) {
    if (policy.policy == "rekindle") ours = &policy;
  }
  if (ours == nullptr) return text;
  for (const PolicyResult& policy : result.policies) {
    if (&policy == ours) continue;
    if (ours->slow_starts == 0) {
      absl::StrAppendFormat(&text, "rekindle has no slow start, %s %d.\n", policy.policy, policy.slow_starts);
    } else {
      absl::StrAppendFormat(&text, "%s has %.1f times the slow starts of rekindle.\n", policy.policy,
                            static_cast<double>(policy.slow_starts) / static_cast<double>(ours->slow_starts));
    }
  }
  return text;
}

std::string ReportJson(const SimulationResult& result, const SimulationModel& model,
                       const SimulationOptions& options) {
  Json json;
  json["invocations"] = result.invocations;
  json["functions"] = result.functions;
  json["apps"] = result.apps;
  json["dependency_images"] = result.dependencies;
  json["days"] = result.days;
  json["memory_budget_bytes"] = options.budgets.memory_bytes;
  json["disk_budget_bytes"] =
      options.budgets.disk_bytes == UINT64_MAX ? Json(nullptr) : Json(options.budgets.disk_bytes);
  json["slow_start_ms"] = options.budgets.slow_start_ms;
  json["seed"] = options.seed;
  json["sample_minutes"] = SimulationResult::kSampleMinutes;
  json["policies"] = Json::array();
  for (const PolicyResult& policy : result.policies) {
    Json one;
    one["policy"] = policy.policy;
    for (size_t level = 0; level < kLevelNames.size(); ++level) {
      one["starts"][kLevelNames[level]] = policy.starts[level];
    }
    one["slow_starts"] = policy.slow_starts;
    one["starts_over_budget"] = policy.over_budget;
    one["mean_ms"] = policy.mean_ms;
    one["p50_ms"] = policy.p50_ms;
    one["p90_ms"] = policy.p90_ms;
    one["p99_ms"] = policy.p99_ms;
    one["p99_9_ms"] = policy.p999_ms;
    one["mean_memory_bytes"] = policy.mean_memory_bytes;
    one["peak_memory_bytes"] = policy.peak_memory_bytes;
    one["peak_disk_bytes"] = policy.peak_disk_bytes;
    for (const char* list : {"memory_bytes", "disk_bytes", "slow_starts_of_sample"})
      one[list] = Json::array();
    for (const PolicyResult::Sample& sample : policy.samples) {
      one["memory_bytes"].push_back(sample.memory_bytes);
      one["disk_bytes"].push_back(sample.disk_bytes);
      one["slow_starts_of_sample"].push_back(sample.slow_starts);
    }
    json["policies"].push_back(std::move(one));
  }
  json["model"] = Json::parse(ToJson(model));
  return json.dump();
}

}  // namespace rekindle::functions
