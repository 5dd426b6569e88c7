#include "daemon/launch_trouble.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace rekindle::daemon {
namespace {

constexpr mode_t kAnyMayExecute = S_IXUSR | S_IXGRP | S_IXOTH;
constexpr size_t kLongestFirstLine = 256;  // as the kernel reads

struct Executed {
  bool there = false;
  mode_t mode = 0;
  std::string first_line;  // of a script, without "#!"; empty: it is none, or can't be read
  bool is_script = false;
};

// With the rights of the job's user.
Executed LookAtExecuted(const std::string& path, const std::optional<RunAs>& user) {
  Executed seen;
  DoAs(user, [&] {
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return;
    seen.there = true;
    seen.mode = info.st_mode;
    if (!S_ISREG(info.st_mode)) return;
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    char buffer[kLongestFirstLine];
    const ssize_t got = file.valid() ? ::read(file.get(), buffer, sizeof buffer) : -1;
    if (got <= 0) return;
    absl::string_view line(buffer, static_cast<size_t>(got));
    seen.is_script = absl::ConsumePrefix(&line, "#!");
    if (seen.is_script) seen.first_line = std::string(line.substr(0, line.find('\n')));
  }).IgnoreError();
  return seen;
}

std::string InterpreterOf(const Executed& script) {
  const absl::string_view line = absl::StripLeadingAsciiWhitespace(script.first_line);
  return std::string(line.substr(0, line.find_first_of(" \t")));
}

std::string WhyMissing(const Executed& program, const std::string& name) {
  if (!program.there) {
    return absl::StrCat("there is no such program", absl::StrContains(name, '/') ? "" : " in PATH",
                        ": check the spelling");
  }
  if (!program.is_script) {
    return "what is to load it (its ELF interpreter) is not there: it was built for another system; install "
           "that, or build it for this one";
  }
  std::string interpreter = InterpreterOf(program);
  if (absl::StripSuffix(interpreter, "\r") != interpreter) {
    return "its first line ends with a carriage return, as files of Windows do, and is taken for a part of "
           "the "
           "interpreter's name: convert it (dos2unix)";
  }
  return absl::StrCat("its interpreter, ", interpreter,
                      " in its first line, is not there: correct that line, or install it");
}

std::string WhyDenied(const Executed& program, const std::string& path) {
  if (program.there && S_ISDIR(program.mode)) return "it is a folder: name a program in it";
  if (program.there && (program.mode & kAnyMayExecute) == 0) {
    return absl::StrCat("it is not executable: chmod +x ", path,
                        ", or name the program that is to run it (python3 FILE, sh FILE)");
  }
  if (program.is_script) {
    return absl::StrCat("permission denied: for it, or for its interpreter ", InterpreterOf(program),
                        ", which must be executable for the job's user, on a file system that is not mounted "
                        "noexec");
  }
  return "permission denied: its folders must be open to the job's user, and it executable for him, on a "
         "file "
         "system that is not mounted noexec";
}

}  // namespace

absl::Status WhyNotEntered(int error, const LaunchOptions& options) {
  const std::string what =
      absl::StrCat("starting ", options.argv[0], ": its working directory ", options.working_directory);
  switch (error) {
    case ENOENT:  // not NotFound: that would be an image that is not there
      return absl::FailedPreconditionError(
          absl::StrCat(what, " is not there: make it, or give another folder"));
    case ENOTDIR:
      return absl::FailedPreconditionError(absl::StrCat(what, " is no folder: give a folder"));
    case EACCES:
      return absl::PermissionDeniedError(
          absl::StrCat(what,
                       " is closed to the job's user: open it and the folders above it to him (chmod +x), or "
                       "give another folder"));
    default:
      return ErrnoStatus(error, what);
  }
}

absl::Status WhyNotExecuted(int error, const std::string& path, const LaunchOptions& options) {
  const std::string what = absl::StrCat("starting ", options.argv[0]);
  if (error == E2BIG) {
    return absl::InvalidArgumentError(
        absl::StrCat(what,
                     ": its arguments and environment are longer than the kernel takes, which is 128 KiB for "
                     "one of them, and a quarter of the stack's limit (ulimit -s) for all: shorten them, or "
                     "give what is long in a file"));
  }
  // There a path may lead to something else.
  if (options.mounts.valid()) {
    if (error != ENOENT) return ErrnoStatus(error, what);
    return absl::FailedPreconditionError(  // not NotFound, as below
        absl::StrCat(what, ": there is no such program, or its interpreter is missing: check the spelling"));
  }
  const Executed program =
      LookAtExecuted(absl::StartsWith(path, "/") ? path : absl::StrCat(options.working_directory, "/", path),
                     options.run_as);
  switch (error) {
    case ENOENT:  // not NotFound: that would be an image that is not there
      return absl::FailedPreconditionError(absl::StrCat(what, ": ", WhyMissing(program, options.argv[0])));
    case EACCES:
      return absl::PermissionDeniedError(absl::StrCat(what, ": ", WhyDenied(program, path)));
    case ENOEXEC:
      return absl::FailedPreconditionError(
          absl::StrCat(what,
                       ": it is neither a program of this machine nor a script that begins with #! and its "
                       "interpreter: add "
                       "that line (#!/bin/sh), or name the program that is to run it (sh FILE)"));
    default:
      return ErrnoStatus(error, what);
  }
}

}  // namespace rekindle::daemon
