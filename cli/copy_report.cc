#include "cli/copy_report.h"

#include "absl/strings/str_cat.h"
#include "base/human_units.h"

namespace rekindle::cli {

std::string SentText(const v1::TransferResult& sent, absl::string_view where) {
  return absl::StrCat(sent.image().reference(), " ", where, ": ", FormatBytes(sent.bytes()), " for ",
                      FormatBytes(sent.image().logical_bytes()), " of memory\n");
}

void Tell(const Output& output, const CopyWords& words, const v1::TransferResult& result, bool was_there) {
  output.Json(result);
  output.Text(was_there ? absl::StrCat(result.image().reference(), " ", words.already, "\n")
                        : SentText(result, words.copied));
}

void TellWasThere(const Output& output, const CopyWords& words, const v1::Image& image) {
  v1::TransferResult result;
  *result.mutable_image() = image;
  Tell(output, words, result, true);
}

}  // namespace rekindle::cli
