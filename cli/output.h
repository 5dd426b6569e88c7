// What the commands print: results for people or JSON on standard output, errors and warnings on standard
// error. What is for people may hold names and lines of other users: it is made printable (printable.h).
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/exit_code.h"

namespace google::protobuf {
class Message;
}

namespace rekindle::cli {

// To standard output, as it is.
void PrintResult(absl::string_view text);
// Has all that went to standard output, here and through Output, got there? What reads a cut answer must not
// take it for a whole one.
absl::Status ResultsWritten();

// Not thread-safe.
class Output {
 public:
  Output(bool json, bool verbose) : Output(json, verbose, stdout) {}

  bool json() const { return json_; }
  // The folder that the command was started in is gone: `stand_in` is in the place of its name. Of what is
  // not found then this is the cause.
  void SetGoneFolder(std::string stand_in) { gone_folder_ = std::move(stand_in); }
  // The same, where standard output is for something else: nothing goes there.
  Output OnStandardError() const {
    Output other(json_, verbose_, stderr);
    other.gone_folder_ = gone_folder_;
    return other;
  }

  // One line of JSON; nothing unless --json was given.
  void Json(const google::protobuf::Message& message) const;
  // The same of a line that is JSON already.
  void JsonLine(absl::string_view line) const;
  // For people; nothing with --json.
  void Text(absl::string_view text) const;
  // As they are, but printable on a terminal; nothing with --json.
  void Bytes(absl::string_view bytes) const;
  // "rekindle: warning: …", on standard error.
  void Warning(absl::string_view text) const;
  // For people, on standard error: beside a job's own output, and with --json.
  void Note(absl::string_view text) const;
  // "+ criu dump …", on standard error, with -v.
  void CommandLine(absl::string_view line) const;

  // Prints the error: with --json as an object on standard output, else as a sentence with its further lines
  // (a CRIU log's) indented. Returns the exit status.
  ExitCode Fail(const absl::Status& status) const;
  ExitCode Fail(const absl::Status& status, ExitCode code) const;

  // "rekindle: error: …\n"
  static std::string ErrorText(const absl::Status& status);

 private:
  Output(bool json, bool verbose, FILE* results) : json_(json), verbose_(verbose), results_(results) {}

  absl::Status OfGoneFolder(const absl::Status& status) const;

  const bool json_, verbose_;
  FILE* const results_;
  std::string gone_folder_;
};

}  // namespace rekindle::cli
