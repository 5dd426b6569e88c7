// What the simulator assumes about sizes and about the time of starts: the same for every policy that it
// compares. Each default is either a figure of docs/start-benchmarks.md (2 cores AMD EPYC, medians of 16
// starts) or marked as an assumption. `rekindle sim --model FILE` overrides any of them by its name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "functions/keep_alive_profile.h"

namespace rekindle::functions {

// Milliseconds, or MB, by the memory of the job in MB: straight lines between the points, level before the
// first one and going on as between the last two, up to a limit.
struct Curve {
  std::vector<std::pair<double, double>> points;
  double At(double mb) const;
};

// 1 MB is 2^20 bytes.
struct SimulationModel {
  // Measured, by resident memory of the jobs b, c, d and e: bare Python, with numpy, pandas and scikit-learn,
  // with torch and a model, C with a heap of 4 GiB. d and e are given there (350 MB, 4096 MB). Assumption: b
  // 10 MB, c 120 MB.
  Curve cold_ms{
      {{10, 22.2}, {120, 1014.7}, {350, 1414.5}, {4096, 8112.9}}};  // cold start; libraries in page cache
  Curve criu_restore_ms{
      {{10, 16.3}, {120, 95.7}, {350, 248.5}, {4096, 7322.2}}};  // stock CRIU, from the page cache
  Curve criu_lazy_ms{
      {{10, 16.2}, {120, 111.7}, {350, 163.2}, {4096, 2305.8}}};           // CRIU --lazy-pages, from RAM
  Curve clone_ms{{{10, 12.0}, {120, 77.4}, {350, 105.0}, {4096, 488.5}}};  // ours, from RAM, nothing stood by
  Curve template_ms{{{10, 2.7}, {120, 19.7}, {350, 25.1}, {4096, 149.6}}};  // ours, forked
  Curve working_set_mb{
      {{10, 0.75}, {120, 9.7}, {350, 5.9}, {4096, 35.5}}};  // what a clone reads before it is up

  double warm_ms = 1;                // assumption (the aim for an invocation through HTTP)
  double code_load_ms = 20;          // assumption: a handler's own code, its libraries being loaded
  double disk_mb_per_second = 1000;  // assumption: one NVMe disk, sequential
  double disk_latency_ms = 0.2;      // assumption
  double spread = 0.12;  // of the logarithm of a start's time: ln(p99/median)/2.33 of clone c there

  // Sizes, as shares of the memory of the function's application.
  double private_share =
      0.5;  // assumption: of a copy of ours, what it does not share with its template or never touches
  double own_share = 0.1;  // assumption: of a function, what is not in its dependency image (more where the
                           // image is smaller than that)
  double default_memory_mb =
      170;  // of applications that the trace does not tell: Shahrad et al., section 3.5
  double default_duration_ms = 684;  // of functions that it does not tell: the median of their log-normal fit

  // Dependency images. The trace says nothing about libraries, so all of this is assumption: an application
  // takes one image of its size class (classes grow by `class_growth`, starting at `class_base_mb`), by
  // Zipf's law one of `images_per_class`; but `unshared_apps` of the applications have one of their own.
  double class_base_mb = 16, class_growth = 1.25;
  int images_per_class = 8;
  double zipf_exponent = 1;
  double unshared_apps = 0.3;

  double keep_alive_seconds = 600;  // of the fixed keep-alive: the issue's
  double fade_seconds = 4 * 3600;   // of our policy
};

// Fields by name; a curve is a list of [MB, value]. Errors name `source` and the field.
absl::Status ApplyJson(absl::string_view json, const std::string& source, SimulationModel* model);
std::string ToJson(const SimulationModel& model);

// One function of a trace, as the model sees it.
struct ModelFunction {
  DependencyId dependency = 0;
  double memory_mb = 0;      // of one instance that shares nothing
  double dependency_mb = 0;  // of its dependency image
};

// Which dependency image an application has: by its name alone, so that it is the same in every run.
struct DependencyChoice {
  uint64_t key = 0;  // equal for equal images
  double mb = 0;
};
DependencyChoice ChooseDependency(const SimulationModel& model, double memory_mb, uint64_t app_hash);

DependencyProfile ProfileOfDependency(const SimulationModel& model, double mb);
FunctionProfile ProfileOf(const SimulationModel& model, const ModelFunction& function);

}  // namespace rekindle::functions
