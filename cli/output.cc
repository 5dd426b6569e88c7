#include "cli/output.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "cli/json.h"
#include "cli/printable.h"

namespace rekindle::cli {
namespace {

void Print(FILE* file, absl::string_view text) { std::fwrite(text.data(), 1, text.size(), file); }

}  // namespace

void Output::Json(const google::protobuf::Message& message) const {
  if (!json_) return;
  Print(results_, ToJson(message) + "\n");
  std::fflush(results_);
}

void Output::Text(absl::string_view text) const {
  if (json_) return;
  Print(stdout, Printable(text));
  std::fflush(stdout);
}

void Output::Bytes(absl::string_view bytes) const {
  if (::isatty(STDOUT_FILENO) == 1) return Text(bytes);
  if (json_) return;
  Print(results_, bytes);
  std::fflush(results_);
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

ExitCode Output::Fail(const absl::Status& status, ExitCode code) const {
  if (json_) {
    Print(results_, ErrorToJson(status, code) + "\n");
    std::fflush(results_);
  } else {
    Print(stderr, ErrorText(status));
  }
  return code;
}

}  // namespace rekindle::cli
