// CRIU's command lines from plain options, so that they can be shown to a person and pasted.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file_rights.h"
#include "criu/installation.h"

namespace rekindle::criu {

enum class AfterDump { kLeaveRunning, kLeaveStopped, kKill };

struct DumpOptions {
  pid_t pid = 0;
  std::string images_directory;       // -D; for a streamed dump it holds streamer-capture.sock
  std::string work_directory;         // -W; empty: images_directory
  std::string log_file = "dump.log";  // relative to the work directory
  bool stream = true;
  AfterDump after = AfterDump::kLeaveRunning;
  bool shell_job = false;
  bool tcp_established = false;
  bool tcp_close = false;
  bool file_locks = false;
  bool external_unix_sockets = false;
  uint64_t ghost_limit_bytes = 0;  // 0: CRIU's default
  bool network_lock_skip = false;
  bool skip_in_flight = false;        // leave out connections that were not accepted yet, rather than fail
  std::vector<std::string> external;  // --external values, such as "tty[8803:18]" or "pipe[12345]"
  int timeout_seconds = 0;            // 0: CRIU's default
  std::string action_script;          // a program; empty: none
  std::string plugins;                // a folder with all that CRIU is to load; empty: none
  std::string run;                    // connection_lock.h; empty: CRIU makes a name of its own
};

struct RestoreOptions {
  std::string images_directory;
  std::string work_directory;
  std::string log_file = "restore.log";
  bool shell_job = false;
  bool tcp_established = false;
  bool tcp_close = false;
  bool file_locks = false;
  bool external_unix_sockets = false;
  int log_level = 2;        // 4 tells what CRIU does when
  bool lazy_pages = false;  // lazy-pages.socket in the work directory is listened to
  std::vector<std::string> external;
  std::vector<std::pair<int, std::string>> inherit_fd;  // (descriptor in CRIU, resource)
  std::string plugins;                                  // a folder with all that CRIU is to load; empty: none
  std::vector<std::string> environment;                 // "K=V", for CRIU. RunRestore alone heeds it
  // CRIU works in a mount namespace that is made for it, a copy of ours, and the job stays there: MS_PRIVATE,
  // MS_SLAVE, or 0: what is mounted in one of them is in the other, as far as it is shared. RunRestore alone
  // heeds it.
  std::optional<unsigned long> own_mounts;
  // Whose rights bound what CRIU does by name (restore_preload.h); nothing: root's job. Who gives a CRIU of
  // his own to RunRestoreOver has told it that himself.
  std::optional<Owner> user;
  // Names of Unix sockets that root may bind for that user.
  std::vector<std::string> placed_sockets;
};

// A folder for CRIU's --libdir that is always there and holds no plugin. The default one may be that of
// another CRIU on the machine; NVIDIA's plugin would make the calls that gpu_state makes a second time, and
// takes a failed restore of GPU state for a success.
inline constexpr char kNoPlugins[] = "/proc/self/ns";

// Arguments after Installation::command, beginning with "dump" / "restore". Both leave cgroups alone. A
// restore is to be detached.
std::vector<std::string> DumpArguments(const DumpOptions& options);
std::vector<std::string> RestoreArguments(const RestoreOptions& options);
// Of a CRIU that takes its request from the socket with this number.
std::vector<std::string> SwrkArguments(int socket, const std::string& plugins = "");

// command + arguments.
std::vector<std::string> FullCommand(const Installation& criu, const std::vector<std::string>& arguments);

// The same as one line for a POSIX shell, quoted where needed.
std::string ShellLine(const std::vector<std::string>& argv);

}  // namespace rekindle::criu
