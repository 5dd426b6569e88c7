// Says at the end of a test how many faults it went through.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "dedup_store/faulty_disk.h"

namespace rekindle::store {

class FaultCount {
 public:
  ~FaultCount() {
    int total = 0;
    std::string text;
    for (const auto& [fault, count] : counts_) {
      total += count;
      absl::StrAppend(&text, text.empty() ? "" : ", ", FaultName(fault), " ", count);
      testing::Test::RecordProperty(absl::StrReplaceAll(FaultName(fault), {{" ", "_"}, {",", ""}}), count);
    }
    if (total > 0) printf("[  faults  ] %d: %s\n", total, text.c_str());
  }
  void Add(Fault fault) { ++counts_[fault]; }
  int of(Fault fault) const {
    auto count = counts_.find(fault);
    return count == counts_.end() ? 0 : count->second;
  }

 private:
  std::map<Fault, int> counts_;
};

}  // namespace rekindle::store
