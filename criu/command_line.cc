#include "criu/command_line.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace rekindle::criu {
namespace {

// Options that a dump and a restore share, in CRIU's spelling.
template <typename Options>
void AddCommon(const Options& options, std::vector<std::string>* arguments) {
  arguments->push_back("--images-dir");
  arguments->push_back(options.images_directory);
  if (!options.work_directory.empty()) {
    arguments->push_back("--work-dir");
    arguments->push_back(options.work_directory);
  }
  arguments->push_back("--log-file");
  arguments->push_back(options.log_file);
  // Warnings and errors: what failures are explained from. More lines lengthen the freeze.
  arguments->push_back("-v2");
  // What an administrator wrote for CRIU's own users (lazy pages, a page server, …) would break a capture.
  arguments->push_back("--no-default-config");
  arguments->push_back("--libdir");
  arguments->push_back(options.plugins.empty() ? kNoPlugins : options.plugins);
  arguments->push_back("--manage-cgroups=ignore");
  if (options.shell_job) arguments->push_back("--shell-job");
  if (options.tcp_established) arguments->push_back("--tcp-established");
  if (options.tcp_close) arguments->push_back("--tcp-close");
  if (options.file_locks) arguments->push_back("--file-locks");
  if (options.external_unix_sockets) arguments->push_back("--ext-unix-sk");
  for (const std::string& external : options.external) {
    arguments->push_back("--external");
    arguments->push_back(external);
  }
}

bool NeedsNoQuotes(absl::string_view word) {
  if (word.empty()) return false;
  for (char c : word) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
        absl::string_view("_-./=:,+@%").find(c) == absl::string_view::npos) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<std::string> DumpArguments(const DumpOptions& options) {
  std::vector<std::string> arguments = {"dump", "--tree", absl::StrCat(options.pid)};
  AddCommon(options, &arguments);
  if (options.stream) arguments.push_back("--stream");
  switch (options.after) {
    case AfterDump::kLeaveRunning:
      arguments.push_back("--leave-running");
      break;
    case AfterDump::kLeaveStopped:
      arguments.push_back("--leave-stopped");
      break;
    case AfterDump::kKill:
      break;  // CRIU's default
  }
  arguments.push_back("--link-remap");
  if (options.ghost_limit_bytes != 0) {
    arguments.push_back("--ghost-limit");
    arguments.push_back(absl::StrCat(options.ghost_limit_bytes));
  }
  if (options.network_lock_skip || options.tcp_established) {
    arguments.push_back("--network-lock");
    // nftables needs no program beside CRIU; iptables, the default, does. The restore finds the method in the
    // image.
    arguments.push_back(options.network_lock_skip ? "skip" : "nftables");
  }
  if (options.skip_in_flight) arguments.push_back("--skip-in-flight");
  if (options.timeout_seconds != 0) {
    arguments.push_back("--timeout");
    arguments.push_back(absl::StrCat(options.timeout_seconds));
  }
  if (!options.action_script.empty()) {
    arguments.push_back("--action-script");
    arguments.push_back(options.action_script);
  }
  return arguments;
}

std::vector<std::string> RestoreArguments(const RestoreOptions& options) {
  std::vector<std::string> arguments = {"restore"};
  AddCommon(options, &arguments);
  if (options.lazy_pages) arguments.push_back("--lazy-pages");
  arguments.push_back("--restore-detached");
  for (const auto& [descriptor, resource] : options.inherit_fd) {
    arguments.push_back("--inherit-fd");
    arguments.push_back(absl::StrCat("fd[", descriptor, "]:", resource));
  }
  return arguments;
}

std::vector<std::string> SwrkArguments(int socket, const std::string& plugins) {
  return {"--no-default-config", "--libdir", plugins.empty() ? kNoPlugins : plugins, "swrk",
          absl::StrCat(socket)};
}

std::vector<std::string> FullCommand(const Installation& criu, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = criu.command;
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

std::string ShellLine(const std::vector<std::string>& argv) {
  return absl::StrJoin(argv, " ", [](std::string* out, const std::string& word) {
    if (NeedsNoQuotes(word)) {
      absl::StrAppend(out, word);
    } else {
      absl::StrAppend(out, "'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
    }
  });
}

}  // namespace rekindle::criu
