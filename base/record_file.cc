#include "base/record_file.h"

#include <fcntl.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle {
namespace {

// What follows it in an error of the parser quotes the file, and records may hold secrets.
std::string FirstLine(absl::string_view error) { return std::string(error.substr(0, error.find('\n'))); }

// As files are called until they have their name: see WriteFileAtomically.
bool IsInTheMaking(absl::string_view name) {
  constexpr absl::string_view kMark = ".tmp-";
  const size_t mark = name.rfind(kMark);
  if (mark == absl::string_view::npos || mark == 0) return false;
  const absl::string_view number = name.substr(mark + kMark.size());
  return !number.empty() && number.find_first_not_of("0123456789-x") == absl::string_view::npos;
}

}  // namespace

void RemoveAbandonedRecords(const std::string& folder) {
  const auto names = ListDirectory(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!IsInTheMaking(name)) continue;
    const std::string path = absl::StrCat(folder, "/", name);
    const auto file = OpenFile(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    struct stat info;
    if (!file.ok() || ::fstat(file->get(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    // Its writer has it locked.
    if (::flock(file->get(), LOCK_EX | LOCK_NB) == 0 && IsFileAt(*file, path)) ::unlink(path.c_str());
  }
}

absl::Status WriteRecordFile(const std::string& path, const google::protobuf::Message& record,
                             RecordOutlives outlives) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  if (auto status = google::protobuf::util::MessageToJsonString(record, &text, options); !status.ok()) {
    return absl::InternalError(
        absl::StrCat("writing ", path, ": it can't be put as JSON: ", std::string(status.message())));
  }
  return outlives == RecordOutlives::kPowerLoss ? WriteFileAtomically(path, text) : ReplaceFile(path, text);
}

absl::Status ReadRecordFile(const std::string& path, google::protobuf::Message* record) {
  RK_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  record->Clear();
  const auto strict = google::protobuf::util::JsonStringToMessage(text, record);
  if (strict.ok()) return absl::OkStatus();
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  record->Clear();
  const auto lenient = google::protobuf::util::JsonStringToMessage(text, record, options);
  return lenient.ok() ? NewerRecord(path, FirstLine(std::string(strict.message())))
                      : UnusableRecord(path, FirstLine(std::string(lenient.message())));
}

absl::Status CheckRecordFormat(const std::string& path, uint32_t found, uint32_t format) {
  if (found == format) return absl::OkStatus();
  const std::string what = absl::StrCat("it has format ", found, ", this version knows ", format);
  return found > format ? NewerRecord(path, what) : UnusableRecord(path, what);
}

absl::Status NewerRecord(const std::string& path, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(path, " was written by a newer version of Rekindle (",
                                                    what, "): use a newer Rekindle for it"));
}

absl::Status UnusableRecord(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, " holds no usable record: ", what));
}

}  // namespace rekindle
