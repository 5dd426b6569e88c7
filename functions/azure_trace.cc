#include "functions/azure_trace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/stable_hash.h"
#include "base/status.h"
#include "functions/csv_file.h"
#include "functions/trace_random.h"

namespace rekindle::functions {
namespace {

constexpr int kFirstMinute = 4;  // column of an invocations file

uint64_t HashText(absl::string_view text) { return Mix(StableHash(text)); }

uint64_t AppHash(const CsvFile& csv) { return Mix(HashText(csv.fields()[0]), HashText(csv.fields()[1])); }
uint64_t FunctionHash(const CsvFile& csv) { return Mix(AppHash(csv), HashText(csv.fields()[2])); }

enum class Kind { kInvocations, kDurations, kMemory };

absl::StatusOr<Kind> KindOf(const CsvFile& csv) {
  if (csv.Column("HashOwner") != 0 || csv.Column("HashApp") != 1) {
    return csv.Error("is no Azure Functions trace of 2019: its first columns must be HashOwner,HashApp");
  }
  if (csv.Column("AverageAllocatedMb") >= 0) return Kind::kMemory;
  if (csv.Column("HashFunction") == 2) {
    if (csv.Column("percentile_Average_50") >= 0) return Kind::kDurations;
    if (csv.Column("Trigger") == 3 && csv.Column("1") == kFirstMinute) {
      if (csv.header().size() == kFirstMinute + kMinutesPerDay) return Kind::kInvocations;
      return csv.Error(absl::StrCat("has ", csv.header().size() - kFirstMinute, " minutes, a day has 1440"));
    }
  }
  return csv.Error(
      "is no file of invocations (…,Trigger,1,…,1440), of durations (…,percentile_Average_50,…) or of memory "
      "(…,AverageAllocatedMb,…)");
}

}  // namespace

absl::StatusOr<AzureTrace> AzureTrace::Open(const std::vector<std::string>& paths) {
  AzureTrace trace;
  for (const std::string& path : paths) {
    RK_ASSIGN_OR_RETURN(CsvFile csv, CsvFile::Open(path));
    RK_ASSIGN_OR_RETURN(Kind kind, KindOf(csv));
    switch (kind) {
      case Kind::kInvocations:
        trace.days_.push_back(path);
        break;
      case Kind::kDurations:
        RK_RETURN_IF_ERROR(trace.ReadDurations(path));
        break;
      case Kind::kMemory:
        RK_RETURN_IF_ERROR(trace.ReadMemory(path));
        break;
    }
  }
  if (trace.days_.empty()) {
    return absl::InvalidArgumentError(
        "there is no file of invocations among the traces: give invocations_per_function_md.anon.dNN.csv "
        "too");
  }
  return trace;
}

// Of several days the first one that has the function counts.
absl::Status AzureTrace::ReadDurations(const std::string& path) {
  RK_ASSIGN_OR_RETURN(CsvFile csv, CsvFile::Open(path));
  std::array<int, 7> columns;
  const std::array<absl::string_view, 7> names{
      "percentile_Average_0",  "percentile_Average_1",  "percentile_Average_25", "percentile_Average_50",
      "percentile_Average_75", "percentile_Average_99", "percentile_Average_100"};
  for (size_t i = 0; i < names.size(); ++i) {
    columns[i] = csv.Column(names[i]);
    if (columns[i] < 0) return csv.Error(absl::StrCat("the column ", names[i], " is missing"));
  }
  while (true) {
    RK_ASSIGN_OR_RETURN(bool more, csv.Next());
    if (!more) return absl::OkStatus();
    std::array<float, 7> values;
    for (size_t i = 0; i < columns.size(); ++i) {
      RK_ASSIGN_OR_RETURN(double value, csv.Number(columns[i]));
      if (value > kMostDurationMs)
        return csv.Error(absl::StrCat(names[i], " is ", value, ", more than ", kMostDurationMs, " ms"));
      values[i] = static_cast<float>(std::max(value, 0.0));  // the dataset has a few below 0
    }
    std::sort(values.begin(), values.end());
    durations_.try_emplace(FunctionHash(csv), values);
  }
}

absl::Status AzureTrace::ReadMemory(const std::string& path) {
  RK_ASSIGN_OR_RETURN(CsvFile csv, CsvFile::Open(path));
  const int column = csv.Column("AverageAllocatedMb");
  while (true) {
    RK_ASSIGN_OR_RETURN(bool more, csv.Next());
    if (!more) return absl::OkStatus();
    RK_ASSIGN_OR_RETURN(double mb, csv.Number(column));
    if (mb < 0 || mb > kMostMemoryMb) {
      return csv.Error(
          absl::StrCat("AverageAllocatedMb is ", mb, ", not a size from 0 to ", kMostMemoryMb, " MB"));
    }
    if (mb > 0) memory_.try_emplace(AppHash(csv), mb);
  }
}

absl::StatusOr<TraceDay> AzureTrace::ReadDay(size_t day) {
  RK_ASSIGN_OR_RETURN(CsvFile csv, CsvFile::Open(days_[day]));
  struct Entry {
    uint32_t function, count;
    uint16_t minute;
  };
  std::vector<Entry> entries;
  TraceDay result;
  while (true) {
    RK_ASSIGN_OR_RETURN(bool more, csv.Next());
    if (!more) break;
    auto [function, new_function] =
        function_ids_.try_emplace(FunctionHash(csv), static_cast<uint32_t>(functions_.size()));
    if (new_function) {
      auto [app, new_app] = app_ids_.try_emplace(AppHash(csv), static_cast<uint32_t>(apps_.size()));
      if (new_app) {
        auto memory = memory_.find(app->first);
        apps_.push_back({app->first, memory == memory_.end() ? 0 : memory->second});
      }
      TraceFunction& added = functions_.emplace_back();
      added.name_hash = function->first;
      added.app = app->second;
      added.timer = csv.fields()[3] == "timer";
      if (auto duration = durations_.find(function->first); duration != durations_.end()) {
        added.has_duration = true;
        added.duration_ms = duration->second;
      }
    }
    for (int minute = 0; minute < kMinutesPerDay; ++minute) {
      absl::string_view field = csv.fields()[static_cast<size_t>(kFirstMinute + minute)];
      if (field.size() == 1 && field[0] == '0') continue;
      uint32_t count = 0;
      bool good = !field.empty() && field.size() <= 8;
      for (char c : field) {
        good = good && c >= '0' && c <= '9';
        count = count * 10 + static_cast<uint32_t>(c - '0');
      }
      if (!good)
        return csv.Error(
            absl::StrCat("minute ", minute + 1, " is '", field, "', not a count below 100 million"));
      if (count > 0) {
        entries.push_back({function->second, count, static_cast<uint16_t>(minute)});
        ++result.first[static_cast<size_t>(minute) + 1];
      }
    }
  }
  for (size_t minute = 0; minute < kMinutesPerDay; ++minute) result.first[minute + 1] += result.first[minute];
  result.calls.resize(entries.size());
  std::array<uint32_t, kMinutesPerDay + 1> next = result.first;
  for (const Entry& entry : entries) result.calls[next[entry.minute]++] = {entry.function, entry.count};
  return result;
}

}  // namespace rekindle::functions
