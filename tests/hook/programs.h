// The programs of the tests: job.c and job.py, which do the same.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "gtest/gtest.h"

namespace rekindle::hook {

enum class Language { kC, kPython };

inline std::string LanguageName(const ::testing::TestParamInfo<Language>& info) {
  return info.param == Language::kC ? "C" : "Python";
}

// A folder with the file that the program reads from.
class ProgramFolder {
 public:
  ProgramFolder() : folder_(*TemporaryDirectory::Make("/tmp", "rekindle-hook-test-")) {
    std::string letters;
    for (int i = 0; i < 1000; ++i) absl::StrAppend(&letters, 1000 + i);
    if (!WriteFileAtomically(file(), letters).ok()) std::abort();
  }
  const std::string& path() const { return folder_.path(); }
  // "1000", "1001", …: the program's first read takes the first.
  std::string file() const { return path() + "/input"; }

 private:
  TemporaryDirectory folder_;
};

inline std::vector<std::string> ProgramCommand(Language language, const std::string& file) {
  if (language == Language::kC) return {REKINDLE_HOOK_JOB, file};
  return {"/usr/bin/python3", "-B", REKINDLE_HOOK_SOURCE "/tests/hook/job.py", file};
}

// Of a variable that comes twice, the program takes the first.
inline std::vector<std::string> ProgramEnvironment(std::vector<std::string> environment) {
  for (const char* variable :
       {"PATH=/usr/bin:/bin", "PYTHONPATH=" REKINDLE_HOOK_SOURCE "/hook/python",
        "REKINDLE_HOOK_LIBRARY=" REKINDLE_HOOK_LIBRARY, "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1"}) {
    environment.push_back(variable);
  }
  return environment;
}

}  // namespace rekindle::hook
