// What the commands print: results for people or JSON on standard output, errors and warnings on standard
// error. What is for people may hold names and lines of other users: it is made printable (printable.h).
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/exit_code.h"

namespace google::protobuf {
class Message;
}

namespace rekindle::cli {

// Not thread-safe.
class Output {
 public:
  Output(bool json, bool verbose) : Output(json, verbose, stdout) {}

  bool json() const { return json_; }
  // The same, where standard output is for something else: nothing goes there.
  Output OnStandardError() const { return {json_, verbose_, stderr}; }

  // One line of JSON; nothing unless --json was given.
  void Json(const google::protobuf::Message& message) const;
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
  ExitCode Fail(const absl::Status& status) const { return Fail(status, ExitCodeFor(status)); }
  ExitCode Fail(const absl::Status& status, ExitCode code) const;

  // "rekindle: error: …\n"
  static std::string ErrorText(const absl::Status& status);

 private:
  Output(bool json, bool verbose, FILE* results) : json_(json), verbose_(verbose), results_(results) {}

  const bool json_, verbose_;
  FILE* const results_;
};

}  // namespace rekindle::cli
