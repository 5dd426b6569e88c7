#include "functions/simulator.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "functions/azure_trace.h"
#include "functions/trace_random.h"

namespace rekindle::functions {
namespace {

constexpr Micros kMinute = 60'000'000;
constexpr size_t kWorthThreads = 2000;  // arrivals

// Of what takes no end, a time that can be added up.
Micros MicrosOf(double ms) { return static_cast<Micros>(std::min(ms * 1e3, 1e15)); }

struct Arrival {
  Micros when = 0;
  Micros duration = 0;
  FunctionId function = 0;
  float normal = 0;  // how far from the model its start is
};

// Counts of milliseconds, 1 % wide.
class LatencyCounts {
 public:
  void Add(double ms, uint64_t count = 1) {
    int bin = ms <= kLeast ? 0 : static_cast<int>(std::log(ms / kLeast) * kPerE) + 1;
    bins_[static_cast<size_t>(std::min(bin, kBins - 1))] += count;
    count_ += count;
    sum_ += ms * static_cast<double>(count);
  }
  double Mean() const { return count_ ? sum_ / static_cast<double>(count_) : 0; }
  double Quantile(double share) const {
    auto rank = std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(share * static_cast<double>(count_))));
    uint64_t seen = 0;
    for (int bin = 0; bin < kBins && count_ > 0; ++bin) {
      if ((seen += bins_[static_cast<size_t>(bin)]) >= rank) return kLeast * std::exp((bin - 0.5) / kPerE);
    }
    return 0;
  }

 private:
  static constexpr double kLeast = 0.01, kPerE = 100;
  static constexpr int kBins = 2000;
  std::array<uint64_t, kBins> bins_{};
  uint64_t count_ = 0;
  double sum_ = 0;
};

// One policy, its clock and its running instances.
class Run {
 public:
  Run(std::string name, const SimulationModel& model, const Budgets& budgets)
      : contender_(MakeContender(name, model, budgets)), model_(model), budgets_(budgets) {
    result_.policy = std::move(name);
  }

  void AddDependency(double mb, Micros now) {
    contender_->AddDependency(mb, now);
    NotePeak();
  }
  void AddFunction(const ModelFunction& function, Micros now) {
    contender_->AddFunction(function, now);
    NotePeak();
  }

  void Play(const std::vector<Arrival>& arrivals) {
    for (const Arrival& arrival : arrivals) {
      FinishUntil(arrival.when);
      Advance(arrival.when);
      StartDecision decision = contender_->Arrived(arrival.function, arrival.when);
      NotePeak();
      ++result_.starts[static_cast<size_t>(decision.level)];
      result_.over_budget += decision.over_budget;
      double ms = decision.expected_ms;
      if (decision.level != StartLevel::kInstance) {
        ms *= std::exp(model_.spread * arrival.normal);
        latencies_.Add(ms);
        if (ms > budgets_.slow_start_ms) {
          ++result_.slow_starts;
          ++slow_;
        }
      }
      running_.push_back({arrival.when + arrival.duration + MicrosOf(ms), arrival.function});
      std::push_heap(running_.begin(), running_.end(), Later);
    }
  }

  void EndOfMinute(Micros now, bool sample) {
    FinishUntil(now);
    Advance(now);
    const Contender::Usage usage = contender_->usage();
    memory_sum_ += static_cast<double>(usage.memory_bytes);
    ++minutes_;
    if (sample) result_.samples.push_back({usage.memory_bytes, usage.disk_bytes, std::exchange(slow_, 0)});
  }

  PolicyResult Finish() {
    const uint64_t warm = result_.starts[static_cast<size_t>(StartLevel::kInstance)];
    if (warm > 0) latencies_.Add(model_.warm_ms, warm);
    result_.mean_ms = latencies_.Mean();
    result_.p50_ms = latencies_.Quantile(0.5);
    result_.p90_ms = latencies_.Quantile(0.9);
    result_.p99_ms = latencies_.Quantile(0.99);
    result_.p999_ms = latencies_.Quantile(0.999);
    result_.mean_memory_bytes = minutes_ ? memory_sum_ / static_cast<double>(minutes_) : 0;
    return std::move(result_);
  }

 private:
  struct Busy {
    Micros until = 0;
    FunctionId function = 0;
  };
  static bool Later(const Busy& a, const Busy& b) {
    return a.until != b.until ? a.until > b.until : a.function > b.function;
  }

  void FinishUntil(Micros now) {
    while (!running_.empty() && running_.front().until <= now) {
      Busy done = running_.front();
      std::pop_heap(running_.begin(), running_.end(), Later);
      running_.pop_back();
      Advance(done.until);
      contender_->BecameIdle(done.function, done.until);
    }
  }

  // Step by step: what is made between two events may be gone again before the second.
  void Advance(Micros now) {
    for (Micros due = contender_->NextChange(); due <= now; due = contender_->NextChange()) {
      contender_->Advance(due);
      NotePeak();
    }
    contender_->Advance(now);
  }

  // After all that may make usage rise.
  void NotePeak() {
    const Contender::Usage usage = contender_->usage();
    result_.peak_memory_bytes = std::max(result_.peak_memory_bytes, usage.memory_bytes);
    result_.peak_disk_bytes = std::max(result_.peak_disk_bytes, usage.disk_bytes);
  }

  std::unique_ptr<Contender> contender_;
  const SimulationModel& model_;
  const Budgets budgets_;
  std::vector<Busy> running_;
  LatencyCounts latencies_;
  PolicyResult result_;
  uint64_t slow_ = 0, minutes_ = 0;
  double memory_sum_ = 0;
};

// Straight lines between the percentiles.
double DrawDuration(const TraceFunction& function, double u) {
  constexpr std::array<double, 7> kShares{0, 0.01, 0.25, 0.5, 0.75, 0.99, 1};
  size_t next = 1;
  while (next + 1 < kShares.size() && kShares[next] < u) ++next;
  double part = (u - kShares[next - 1]) / (kShares[next] - kShares[next - 1]);
  return function.duration_ms[next - 1] +
         part * (function.duration_ms[next] - function.duration_ms[next - 1]);
}

class Simulation {
 public:
  Simulation(const SimulationModel& model, const SimulationOptions& options, AzureTrace trace)
      : model_(model), options_(options), trace_(std::move(trace)) {
    for (const std::string& name : options.policies.empty() ? ContenderNames() : options.policies) {
      runs_.push_back(std::make_unique<Run>(name, model_, options.budgets));
    }
  }

  absl::StatusOr<SimulationResult> Play() {
    for (size_t day = 0; day < trace_.days(); ++day) {
      RK_ASSIGN_OR_RETURN(TraceDay calls, trace_.ReadDay(day));
      AddNew(static_cast<Micros>(day) * kMinutesPerDay * kMinute);
      for (int minute = 0; minute < kMinutesPerDay; ++minute) {
        const Micros start = (static_cast<Micros>(day) * kMinutesPerDay + minute) * kMinute;
        MakeArrivals(calls, minute, start);
        result_.invocations += arrivals_.size();
        PlayMinute(start + kMinute, (minute + 1) % SimulationResult::kSampleMinutes == 0);
        if (options_.progress) {
          options_.progress(static_cast<double>(day * kMinutesPerDay + static_cast<size_t>(minute) + 1) /
                            static_cast<double>(trace_.days() * kMinutesPerDay));
        }
      }
    }
    result_.days = trace_.days();
    result_.functions = trace_.functions().size();
    result_.apps = trace_.apps().size();
    result_.dependencies = dependencies_.size();
    for (auto& run : runs_) result_.policies.push_back(run->Finish());
    return std::move(result_);
  }

 private:
  // The policies know nothing of each other, so each has a thread of its own when there is enough to do.
  void PlayMinute(Micros end, bool sample) {
    auto play = [&](Run* run) {
      run->Play(arrivals_);
      run->EndOfMinute(end, sample);
    };
    std::vector<std::thread> threads;
    for (size_t i = 1; i < runs_.size(); ++i) {
      if (arrivals_.size() < kWorthThreads) {
        play(runs_[i].get());
      } else {
        threads.emplace_back(play, runs_[i].get());
      }
    }
    play(runs_[0].get());
    for (std::thread& thread : threads) thread.join();
  }

  void AddNew(Micros now) {
    for (; added_ < trace_.functions().size(); ++added_) {
      const TraceFunction& function = trace_.functions()[added_];
      const TraceApp& app = trace_.apps()[function.app];
      ModelFunction added;
      added.memory_mb = app.memory_mb > 0 ? app.memory_mb : model_.default_memory_mb;
      DependencyChoice choice = ChooseDependency(model_, added.memory_mb, app.name_hash);
      auto [dependency, is_new] =
          dependencies_.try_emplace(choice.key, static_cast<DependencyId>(dependencies_.size()));
      added.dependency = dependency->second;
      added.dependency_mb = choice.mb;
      for (auto& run : runs_) {
        if (is_new) run->AddDependency(choice.mb, now);
        run->AddFunction(added, now);
      }
    }
  }

  void MakeArrivals(const TraceDay& day, int minute, Micros start) {
    arrivals_.clear();
    const auto at = static_cast<size_t>(minute);
    for (uint32_t i = day.first[at]; i < day.first[at + 1]; ++i) {
      const TraceDay::Calls& calls = day.calls[i];
      const TraceFunction& function = trace_.functions()[calls.function];
      const uint64_t key = Mix(options_.seed ^ function.name_hash, static_cast<uint64_t>(start));
      const double phase = UnitInterval(Mix(options_.seed, function.name_hash));
      for (uint32_t n = 0; n < calls.count; ++n) {
        const uint64_t draw = Mix(key, n);
        const double moment = function.timer ? (n + phase) / calls.count : UnitInterval(draw);
        const uint64_t second = Mix(draw);
        const double ms =
            function.has_duration ? DrawDuration(function, UnitInterval(second)) : model_.default_duration_ms;
        arrivals_.push_back({start + static_cast<Micros>(moment * kMinute), MicrosOf(ms), calls.function,
                             static_cast<float>(RoughNormal(Mix(second)))});
      }
    }
    std::sort(arrivals_.begin(), arrivals_.end(), [](const Arrival& a, const Arrival& b) {
      return a.when != b.when ? a.when < b.when : a.function < b.function;
    });
  }

  const SimulationModel& model_;
  const SimulationOptions& options_;
  AzureTrace trace_;
  std::vector<std::unique_ptr<Run>> runs_;
  absl::flat_hash_map<uint64_t, DependencyId> dependencies_;
  size_t added_ = 0;
  std::vector<Arrival> arrivals_;
  SimulationResult result_;
};

}  // namespace

absl::StatusOr<SimulationResult> Simulate(const SimulationModel& model, const SimulationOptions& options) {
  for (const std::string& name : options.policies) {
    if (std::find(ContenderNames().begin(), ContenderNames().end(), name) == ContenderNames().end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no policy '", name, "'; there are: ", absl::StrJoin(ContenderNames(), ", ")));
    }
  }
  RK_ASSIGN_OR_RETURN(AzureTrace trace, AzureTrace::Open(options.traces));
  return Simulation(model, options, std::move(trace)).Play();
}

}  // namespace rekindle::functions
