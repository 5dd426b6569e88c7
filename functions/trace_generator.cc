#include "functions/trace_generator.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"
#include "functions/azure_trace.h"
#include "functions/trace_random.h"

namespace rekindle::functions {
namespace {

struct Point {
  double value, share;  // so many have at most this value
};

// Straight lines over the logarithm of the value.
double Draw(const std::vector<Point>& cdf, double u) {
  if (u <= cdf.front().share) return cdf.front().value;
  size_t next = 1;
  while (next + 1 < cdf.size() && cdf[next].share < u) ++next;
  const Point &a = cdf[next - 1], &b = cdf[next];
  double part = std::min(1.0, (u - a.share) / (b.share - a.share));
  return a.value * std::pow(b.value / a.value, part);
}

// Figure 5a without its steps, which are the timers.
const std::vector<Point> kDailyRates{
    {0.07, 0.075}, {0.14, 0.13}, {0.5, 0.24},   {1, 0.33},    {2, 0.43},      {10, 0.61},    {24, 0.68},
    {96, 0.763},   {288, 0.834}, {1440, 0.917}, {1e4, 0.965}, {86400, 0.991}, {3e5, 0.9965}, {1e6, 1}};
const std::vector<Point> kFunctionsPerApp{{1, 0.54},  {2, 0.71},  {3, 0.80},   {4, 0.85},     {5, 0.88},
                                          {10, 0.95}, {20, 0.98}, {50, 0.996}, {100, 0.9996}, {200, 1}};

struct NamedShare {
  const char* name;
  double share;
};
constexpr std::array<NamedShare, 6> kTriggers{{{"http", 55.0},
                                               {"queue", 15.2},
                                               {"event", 2.2},
                                               {"orchestration", 6.9},
                                               {"storage", 2.8},
                                               {"others", 2.2}}};
constexpr double kTimers = 0.156;
constexpr std::array<std::pair<int, double>, 6> kTimerMinutes{
    {{1440, 4.9}, {60, 2.5}, {30, 1.2}, {15, 1.0}, {5, 3.5}, {1, 2.5}}};
constexpr double kPeriodicShare = 0.12, kPoissonShare = 0.26;
constexpr double kDayWave = 0.2;

enum class Arrivals { kTimer, kPeriodic, kPoisson, kBursty };

struct Plan {
  std::string owner, app, function;
  const char* trigger = "";
  Arrivals arrivals = Arrivals::kPoisson;
  double daily = 0;
  double duration_ms = 0, memory_mb = 0;
  double phase = 0;  // [0, 1) of the period
  double burst = 0;  // mean invocations of a session
  bool first_of_app = false;
};

std::string Name(uint64_t seed, uint64_t kind, uint64_t number) {
  std::string name;
  for (uint64_t part = 0; part < 4; ++part) {
    absl::StrAppendFormat(&name, "%016x", Mix(Mix(seed, kind), number * 4 + part));
  }
  return name;
}

template <typename List>
auto Choose(const List& list, double u) {
  double total = 0;
  for (const auto& [what, share] : list) total += share;
  u *= total;
  for (const auto& [what, share] : list) {
    if ((u -= share) < 0) return what;
  }
  return list.back().first;
}

const char* ChooseTrigger(double u) {
  std::array<std::pair<const char*, double>, kTriggers.size()> list;
  for (size_t i = 0; i < list.size(); ++i) list[i] = {kTriggers[i].name, kTriggers[i].share};
  return Choose(list, u);
}

std::vector<Plan> MakePlans(const GeneratorOptions& options, uint64_t* apps) {
  std::vector<Plan> plans;
  plans.reserve(options.functions);
  Random random(Mix(options.seed, 17));
  while (plans.size() < options.functions) {
    const uint64_t app = (*apps)++;
    // ceil: the lines between the points stand for whole numbers.
    auto count = static_cast<uint32_t>(std::ceil(Draw(kFunctionsPerApp, random.Uniform()) - 1e-9));
    const double memory =
        std::min(1536.0, 107.083 * std::pow(std::pow(1 - random.Uniform(), -1 / 0.221) - 1, 1 / 11.652));
    for (uint32_t i = 0; i < count && plans.size() < options.functions; ++i) {
      Plan plan;
      plan.owner = Name(options.seed, 1, app / 2);
      plan.app = Name(options.seed, 2, app);
      plan.function = Name(options.seed, 3, plans.size());
      plan.memory_mb = memory;
      plan.first_of_app = i == 0;
      plan.phase = random.Uniform();
      plan.daily = Draw(kDailyRates, random.Uniform());
      plan.trigger = ChooseTrigger(random.Uniform());
      double kind = random.Uniform(), timer = random.Uniform();
      plan.burst = 2 * std::pow(25, random.Uniform());
      if (random.Uniform() < kTimers) {
        plan.arrivals = Arrivals::kTimer;
        plan.trigger = "timer";
        plan.daily = kMinutesPerDay / static_cast<double>(Choose(kTimerMinutes, timer));
      } else {
        plan.arrivals = kind < kPeriodicShare                   ? Arrivals::kPeriodic
                        : kind < kPeriodicShare + kPoissonShare ? Arrivals::kPoisson
                                                                : Arrivals::kBursty;
      }
      plan.burst = std::max(plan.burst, plan.daily / 2000);
      double seconds = std::min({600.0, std::exp(-0.38 + 2.36 * random.Normal()), 20 * 86400 / plan.daily});
      plan.duration_ms = std::max(1.0, seconds * 1e3);
      plans.push_back(std::move(plan));
    }
  }
  return plans;
}

using Minutes = std::array<uint32_t, kMinutesPerDay>;

void FillDay(const Plan& plan, uint32_t day, Random* random, Minutes* minutes) {
  minutes->fill(0);
  const double per_minute = plan.daily / kMinutesPerDay;
  if (plan.arrivals == Arrivals::kTimer || plan.arrivals == Arrivals::kPeriodic) {
    // So many periods have ended by the end of each minute.
    double done = std::floor(per_minute * day * kMinutesPerDay + plan.phase);
    for (int minute = 0; minute < kMinutesPerDay; ++minute) {
      double now =
          std::floor(per_minute * (static_cast<double>(day) * kMinutesPerDay + minute + 1) + plan.phase);
      (*minutes)[static_cast<size_t>(minute)] = static_cast<uint32_t>(now - done);
      done = now;
    }
    return;
  }
  for (int minute = 0; minute < kMinutesPerDay; ++minute) {
    double rate = per_minute * (1 + kDayWave * std::sin(2 * M_PI * minute / kMinutesPerDay));
    if (plan.arrivals == Arrivals::kPoisson) {
      (*minutes)[static_cast<size_t>(minute)] += static_cast<uint32_t>(random->Poisson(rate));
      continue;
    }
    for (uint64_t session = random->Poisson(rate / plan.burst); session > 0; --session) {
      double size = 1 + std::floor(random->Exponential() / -std::log1p(-1 / plan.burst));
      int length = 1 + static_cast<int>(random->Uniform() * 10);
      (*minutes)[static_cast<size_t>(minute)] += 1;
      for (int i = 0; i < length && minute + i < kMinutesPerDay; ++i) {
        (*minutes)[static_cast<size_t>(minute + i)] +=
            static_cast<uint32_t>(random->Poisson((size - 1) / length));
      }
    }
  }
}

class Writer {
 public:
  static absl::StatusOr<Writer> Open(const std::string& path) {
    Writer writer;
    writer.path_ = path;
    writer.file_.reset(std::fopen(path.c_str(), "we"));
    if (!writer.file_) return writer.Failed();
    return writer;
  }
  absl::Status Write(absl::string_view text) {
    return std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() ? absl::OkStatus() : Failed();
  }
  absl::Status Close() { return std::fclose(file_.release()) == 0 ? absl::OkStatus() : Failed(); }

 private:
  struct Closer {
    void operator()(FILE* file) const { std::fclose(file); }
  };
  absl::Status Failed() const {
    return ErrnoStatus(errno, absl::StrCat("cannot write the trace '", path_, "'"));
  }
  std::string path_;
  std::unique_ptr<FILE, Closer> file_;
};

std::string DurationRow(const Plan& plan, uint64_t count) {
  // Standard normal quantiles of the percentiles; 0 and 100 as of a thousand.
  const double mean = plan.duration_ms, sigma = 0.5;
  auto at = [&](double z) { return mean * std::exp(sigma * z - sigma * sigma / 2); };
  std::string row = absl::StrFormat("%s,%s,%s,%.0f,%d,%.0f,%.0f", plan.owner, plan.app, plan.function, mean,
                                    count, at(-3.1), at(3.1));
  for (double z : {-3.1, -2.326, -0.6745, 0.0, 0.6745, 2.326, 3.1})
    absl::StrAppendFormat(&row, ",%.1f", at(z));
  return row + "\n";
}

std::string MemoryRow(const Plan& plan) {
  std::string row = absl::StrFormat("%s,%s,100,%.1f", plan.owner, plan.app, plan.memory_mb);
  for (double part : {0.8, 0.85, 0.95, 1.0, 1.05, 1.15, 1.2, 1.25}) {
    absl::StrAppendFormat(&row, ",%.1f", plan.memory_mb * part);
  }
  return row + "\n";
}

}  // namespace

absl::StatusOr<GeneratedTrace> GenerateTrace(const GeneratorOptions& options) {
  RK_RETURN_IF_ERROR(MakeDirectories(options.directory, 0755));
  GeneratedTrace result;
  const std::vector<Plan> plans = MakePlans(options, &result.apps);
  result.functions = plans.size();
  std::string header = "HashOwner,HashApp,HashFunction,Trigger";
  for (int minute = 1; minute <= kMinutesPerDay; ++minute) absl::StrAppend(&header, ",", minute);
  absl::StrAppend(&header, "\n");
  for (uint32_t day = 0; day < options.days; ++day) {
    const std::string end = absl::StrFormat(".anon.d%02d.csv", day + 1);
    const std::string names[] = {absl::StrCat(options.directory, "/invocations_per_function_md", end),
                                 absl::StrCat(options.directory, "/function_durations_percentiles", end),
                                 absl::StrCat(options.directory, "/app_memory_percentiles", end)};
    RK_ASSIGN_OR_RETURN(Writer invocations, Writer::Open(names[0]));
    RK_ASSIGN_OR_RETURN(Writer durations, Writer::Open(names[1]));
    RK_ASSIGN_OR_RETURN(Writer memory, Writer::Open(names[2]));
    RK_RETURN_IF_ERROR(invocations.Write(header));
    RK_RETURN_IF_ERROR(durations.Write(
        "HashOwner,HashApp,HashFunction,Average,Count,Minimum,Maximum,percentile_Average_0,percentile_"
        "Average_1,"
        "percentile_Average_25,percentile_Average_50,percentile_Average_75,percentile_Average_99,"
        "percentile_Average_100\n"));
    RK_RETURN_IF_ERROR(memory.Write(
        "HashOwner,HashApp,SampleCount,AverageAllocatedMb,AverageAllocatedMb_pct1,AverageAllocatedMb_pct5,"
        "AverageAllocatedMb_pct25,AverageAllocatedMb_pct50,AverageAllocatedMb_pct75,AverageAllocatedMb_pct95,"
        "AverageAllocatedMb_pct99,AverageAllocatedMb_pct100\n"));
    Minutes minutes;
    std::string row;
    for (size_t i = 0; i < plans.size(); ++i) {
      const Plan& plan = plans[i];
      Random random(Mix(Mix(options.seed, 1000 + day), i));
      FillDay(plan, day, &random, &minutes);
      uint64_t count = 0;
      for (uint32_t n : minutes) count += n;
      if (plan.first_of_app) RK_RETURN_IF_ERROR(memory.Write(MemoryRow(plan)));
      if (count == 0) continue;  // as in the dataset: who was not called is not in the file
      result.invocations += count;
      row = absl::StrCat(plan.owner, ",", plan.app, ",", plan.function, ",", plan.trigger);
      for (uint32_t n : minutes) absl::StrAppend(&row, ",", n);
      row += '\n';
      RK_RETURN_IF_ERROR(invocations.Write(row));
      RK_RETURN_IF_ERROR(durations.Write(DurationRow(plan, count)));
    }
    for (Writer* writer : {&invocations, &durations, &memory}) RK_RETURN_IF_ERROR(writer->Close());
    result.files.insert(result.files.end(), std::begin(names), std::end(names));
  }
  return result;
}

}  // namespace rekindle::functions
