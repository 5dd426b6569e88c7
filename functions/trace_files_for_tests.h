// Small traces for tests, in a folder that goes with the object.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle::functions {

class TraceFiles {
 public:
  using Row =
      std::pair<std::string, std::map<int, int>>;  // "owner,app,function,trigger", counts by minute (from 1)
  using Fields = std::vector<std::pair<std::string, std::string>>;

  TraceFiles() {
    std::string name = ::testing::TempDir() + "/trace.XXXXXX";
    path_ = ::mkdtemp(name.data()) ? name : "";
    EXPECT_FALSE(path_.empty());
  }
  ~TraceFiles() { EXPECT_TRUE(RemoveTree(path_).ok()); }
  TraceFiles(const TraceFiles&) = delete;
  TraceFiles& operator=(const TraceFiles&) = delete;

  const std::string& path() const { return path_; }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(path_ + "/" + name) << text;
    return path_ + "/" + name;
  }

  static std::string InvocationsText(const std::vector<Row>& rows) {
    std::string text = "HashOwner,HashApp,HashFunction,Trigger";
    for (int minute = 1; minute <= 1440; ++minute) absl::StrAppend(&text, ",", minute);
    for (const auto& [names, counts] : rows) {
      absl::StrAppend(&text, "\n", names);
      for (int minute = 1; minute <= 1440; ++minute) {
        auto found = counts.find(minute);
        absl::StrAppend(&text, ",", found == counts.end() ? 0 : found->second);
      }
    }
    return text + "\n";
  }
  std::string Invocations(const std::string& name, const std::vector<Row>& rows) {
    return Write(name, InvocationsText(rows));
  }

  // "owner,app", MB
  std::string Memory(const std::string& name, const Fields& rows) {
    std::string text =
        "HashOwner,HashApp,SampleCount,AverageAllocatedMb,AverageAllocatedMb_pct1,AverageAllocatedMb_pct5,"
        "AverageAllocatedMb_pct25,AverageAllocatedMb_pct50,AverageAllocatedMb_pct75,AverageAllocatedMb_pct95,"
        "AverageAllocatedMb_pct99,AverageAllocatedMb_pct100\n";
    for (const auto& [names, mb] : rows) absl::StrAppend(&text, names, ",9,", mb, ",1,1,1,1,1,1,1,1\n");
    return Write(name, text);
  }

  // "owner,app,function", the seven percentiles in ms
  std::string Durations(const std::string& name, const Fields& rows) {
    std::string text =
        "HashOwner,HashApp,HashFunction,Average,Count,Minimum,Maximum,percentile_Average_0,percentile_"
        "Average_1,"
        "percentile_Average_25,percentile_Average_50,percentile_Average_75,percentile_Average_99,"
        "percentile_Average_100\n";
    for (const auto& [names, percentiles] : rows)
      absl::StrAppend(&text, names, ",1,1,1,1,", percentiles, "\n");
    return Write(name, text);
  }

 private:
  std::string path_;
};

}  // namespace rekindle::functions
