#include "functions/csv_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::functions {

absl::StatusOr<CsvFile> CsvFile::Open(const std::string& path) {
  CsvFile csv;
  csv.path_ = path;
  csv.file_.reset(std::fopen(path.c_str(), "re"));
  if (!csv.file_) return ErrnoStatus(errno, absl::StrCat("cannot open the trace '", path, "'"));
  std::setvbuf(csv.file_.get(), nullptr, _IOFBF, 1 << 20);
  RK_ASSIGN_OR_RETURN(bool any, csv.Next());
  if (!any) return absl::InvalidArgumentError(absl::StrCat("the trace '", path, "' is empty"));
  for (absl::string_view field : csv.fields_) csv.header_.emplace_back(field);
  return csv;
}

absl::StatusOr<bool> CsvFile::Next() {
  do {
    char* line = nullptr;
    size_t capacity = 0;
    errno = 0;
    ssize_t length = ::getline(&line, &capacity, file_.get());
    std::unique_ptr<char, decltype(&std::free)> owned(line, &std::free);
    if (length < 0) {
      if (std::ferror(file_.get())) return ErrnoStatus(errno, absl::StrCat("cannot read '", path_, "'"));
      return false;
    }
    ++number_;
    line_.assign(line, static_cast<size_t>(length));
    while (!line_.empty() && (line_.back() == '\n' || line_.back() == '\r')) line_.pop_back();
  } while (line_.empty());
  fields_.clear();
  const char* begin = line_.data();
  const char* const end = begin + line_.size();
  while (true) {
    const char* comma = static_cast<const char*>(std::memchr(begin, ',', static_cast<size_t>(end - begin)));
    fields_.emplace_back(begin, static_cast<size_t>((comma ? comma : end) - begin));
    if (!comma) break;
    begin = comma + 1;
  }
  if (!header_.empty() && fields_.size() != header_.size()) {
    return Error(absl::StrCat("has ", fields_.size(), " fields, the first line ", header_.size()));
  }
  return true;
}

int CsvFile::Column(absl::string_view name) const {
  auto found = std::find(header_.begin(), header_.end(), name);
  return found == header_.end() ? -1 : static_cast<int>(found - header_.begin());
}

absl::Status CsvFile::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ":", number_, ": ", what));
}

absl::StatusOr<double> CsvFile::Number(int column) const {
  double value = 0;
  absl::string_view field = fields_[static_cast<size_t>(column)];
  if (!absl::SimpleAtod(field, &value) || !std::isfinite(value)) {
    return Error(absl::StrCat(header_[static_cast<size_t>(column)], " is '", field, "', not a number"));
  }
  return value;
}

}  // namespace rekindle::functions
