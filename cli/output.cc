#include "cli/output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "cli/json.h"
#include "cli/printable.h"

namespace rekindle::cli {
namespace {

// What has kept standard output from being written first. errno tells of something else by the end.
int first_trouble = 0;

void Print(FILE* file, absl::string_view text) {
  errno = 0;
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (!written && file == stdout && first_trouble == 0) first_trouble = errno;
}

}  // namespace

void PrintResult(absl::string_view text) { Print(stdout, text); }

absl::Status ResultsWritten() {
  if (first_trouble == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  return ErrnoStatus(first_trouble != 0 ? first_trouble : EIO, "writing standard output");
}

void Output::Json(const google::protobuf::Message& message) const {
  if (json_) JsonLine(ToJson(message));
}

void Output::JsonLine(absl::string_view line) const {
  if (json_) Print(results_, absl::StrCat(line, "\n"));
}

void Output::Text(absl::string_view text) const {
  if (json_) return;
  PrintResult(Printable(text));
}

void Output::Bytes(absl::string_view bytes) const {
  if (::isatty(STDOUT_FILENO) == 1) return Text(bytes);
  if (json_) return;
  Print(results_, bytes);
}

void Output::Warning(absl::string_view text) const {
  Print(stderr, absl::StrCat("rekindle: warning: ", Printable(text), "\n"));
}

void Output::Note(absl::string_view text) const { Print(stderr, Printable(text)); }

void Output::CommandLine(absl::string_view line) const {
  if (verbose_) Print(stderr, absl::StrCat("+ ", Printable(line), "\n"));
}

std::string Output::ErrorText(const absl::Status& status) {
  const std::string message = Printable(absl::StripSuffix(status.message(), "\n"));
  return absl::StrCat("rekindle: error: ", absl::StrReplaceAll(message, {{"\n", "\n  "}}), "\n");
}

// Relative paths alone lead nowhere there.
absl::Status Output::OfGoneFolder(const absl::Status& status) const {
  if (gone_folder_.empty()) return status;
  const absl::string_view message = status.message();
  if (!absl::StrContains(message, gone_folder_) && !absl::StrContains(message, "No such file or directory"))
    return status;
  return absl::FailedPreconditionError(absl::StrCat(
      "the folder that you are in has been removed, or made anew, since you went there, and what is named "
      "relative to it is nowhere: cd to one that is there (`cd \"$PWD\"` goes to one that was made anew)\n",
      absl::StrReplaceAll(message, {{gone_folder_, "."}})));
}

ExitCode Output::Fail(const absl::Status& status) const {
  const absl::Status told = OfGoneFolder(status);
  return Fail(told, ExitCodeFor(told));
}

ExitCode Output::Fail(const absl::Status& status, ExitCode code) const {
  if (json_) {
    Print(results_, ErrorToJson(status, code) + "\n");
  } else {
    Print(stderr, ErrorText(status));
  }
  return code;
}

}  // namespace rekindle::cli
