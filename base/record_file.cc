#include "base/record_file.h"

#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace rekindle {

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
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  record->Clear();
  auto status = google::protobuf::util::JsonStringToMessage(text, record, options);
  if (status.ok()) return absl::OkStatus();
  // What follows the first line quotes the file, and records may hold secrets.
  const std::string why(status.message());
  return UnusableRecord(path, why.substr(0, why.find('\n')));
}

absl::Status UnusableRecord(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, " holds no usable record: ", what));
}

}  // namespace rekindle
