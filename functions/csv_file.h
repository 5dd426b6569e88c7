// A CSV file without quotes, line by line.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rekindle::functions {

// Not thread-safe.
class CsvFile {
 public:
  static absl::StatusOr<CsvFile> Open(const std::string& path);  // and reads its first line

  // The next line that is not empty; false at the end. Its fields are valid until the next call.
  absl::StatusOr<bool> Next();
  const std::vector<absl::string_view>& fields() const { return fields_; }
  const std::vector<std::string>& header() const { return header_; }
  int Column(absl::string_view name) const;  // -1: there is none

  // "trace.csv:7: what"
  absl::Status Error(absl::string_view what) const;

  absl::StatusOr<double> Number(int column) const;

 private:
  struct Closer {
    void operator()(FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<FILE, Closer> file_;
  std::string line_;
  int64_t number_ = 0;
  std::vector<absl::string_view> fields_;
  std::vector<std::string> header_;
};

}  // namespace rekindle::functions
