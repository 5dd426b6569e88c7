// CRIU's image files: the ones Rekindle must understand, with schemas of our own for the fields it needs
// (criu/images.proto). Unknown fields survive a parse-and-serialise round trip.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_rights.h"

namespace rekindle::criu {

inline constexpr uint64_t kPageBytes = 4096;

struct PstreeEntry {
  pid_t pid = 0, ppid = 0, pgid = 0, sid = 0;
  std::vector<pid_t> threads;
};
// `content` is a whole pstree.img. DataLoss when it is damaged or of another kind.
absl::StatusOr<std::vector<PstreeEntry>> ParsePstree(absl::string_view content);

struct Inventory {
  uint32_t image_version = 0;
  bool tcp_close = false;
  uint32_t network_lock_method = 0;
  std::string run;  // of CRIU, by which it called what it locked connections with; empty: it does not say
};
absl::StatusOr<Inventory> ParseInventory(absl::string_view content);

// Flags of a pagemap entry.
inline constexpr uint32_t kPageInParent = 1, kPageLazy = 2, kPagePresent = 4;

struct PagemapEntry {
  uint64_t address = 0;
  uint64_t pages = 0;
  uint32_t flags = 0;
  uint64_t file_offset = 0;  // in the pages image; meaningful when kPagePresent is set
};
struct Pagemap {
  uint32_t pages_id = 0;
  std::vector<PagemapEntry> entries;
  uint64_t present_pages() const;
};
// Handles both the layout up to CRIU 4.1 (count in field 2) and later (field 5). Entries with fields or flags
// we do not know (such as 4.3's compression) are refused with Unimplemented, never guessed.
absl::StatusOr<Pagemap> ParsePagemap(absl::string_view content);
// In the layout of 4.2 and later.
std::string SerializePagemap(const Pagemap& pagemap);

// A memory area of mm-PID.img.
struct Vma {
  uint64_t start = 0, end = 0, page_offset = 0, shmid = 0;
  uint32_t prot = 0, flags = 0;  // PROT_*, MAP_*
  uint32_t status = 0;           // CRIU's VMA_* bits
  uint64_t madv = 0;             // bit N: MADV_N was applied
  uint32_t file_flags = 0;       // O_RDONLY, O_WRONLY or O_RDWR, as the mapped file was opened
  // Private, anonymous, not locked, not huge-tlb, not a stack of the kernel's own (vdso, vvar): content may
  // be put in from outside.
  bool plain_anonymous() const;
  // `shmid` is the number of a file.
  bool of_file() const;
  // A private mapping of a file, so that the pages of it that are in the image are changed copies; may be
  // written from outside.
  bool private_file() const;
  // A shared mapping of a file (whose RegularFile::id is `shmid`) that is written, or that the process may
  // make writable.
  bool writable_file() const;
};
absl::StatusOr<std::vector<Vma>> ParseMm(absl::string_view content);
// Has the process forbidden itself transparent huge pages (PR_SET_THP_DISABLE)? `mm_content` as above.
absl::StatusOr<bool> HugePagesDisabled(absl::string_view mm_content);

// Does a timer run that will send this process a signal (setitimer, timer_create)? `core_content`: of
// core-PID.img.
absl::StatusOr<bool> HasArmedTimer(absl::string_view core_content);
// Has the process of this number ended in the image, so that nothing is left of it but its end? `directory`:
// where the image's files are. False also where that can't be read.
bool HasEndedInImage(const std::string& directory, pid_t pid);
// Whose a process is: its real user and group, and the further groups. `core_content`: of core-PID.img.
absl::StatusOr<Owner> ParseOwner(absl::string_view core_content);

// The resource limits of a process, by RLIMIT_…. `core_content`: of core-PID.img.
absl::StatusOr<std::vector<rlimit>> ParseLimits(absl::string_view core_content);

// Is one of the timers that are descriptors (timerfd_create) running?
absl::StatusOr<bool> HasArmedTimerFile(absl::string_view files_content);
// How many of its eventfds are semaphores, as far as the image tells (semaphore_mark.h).
absl::StatusOr<size_t> CountSemaphores(absl::string_view files_content);
// Does the job wait for connections, over TCP or on a Unix socket?
absl::StatusOr<bool> HasListeningSocket(absl::string_view files_content);

// One end of a TCP connection; addresses in the order of the network, the first number alone of IPv4.
struct TcpConnection {
  int family = 0;  // AF_*
  std::array<uint32_t, 4> local = {}, remote = {};
  uint16_t local_port = 0, remote_port = 0;
  friend bool operator==(const TcpConnection&, const TcpConnection&) = default;
};
// "192.0.2.1:80 to 192.0.2.7:4711"
std::string Describe(const TcpConnection& connection);
// The connections that the job has.
absl::StatusOr<std::vector<TcpConnection>> TcpConnections(absl::string_view files_content);
// The local ends of its TCP sockets that have a port, connected or not; the remote ones are left out.
absl::StatusOr<std::vector<TcpConnection>> TcpLocalEnds(absl::string_view files_content);

// Statistics that CRIU leaves beside the log (stats-dump).
struct DumpStats {
  uint64_t freezing_us = 0, frozen_us = 0, memdump_us = 0, memwrite_us = 0;
  uint64_t pages_scanned = 0, pages_written = 0;
};
absl::StatusOr<DumpStats> ParseDumpStats(absl::string_view content);

// Regular files the job has open or mapped, from files.img (for the check that they are still there).
struct RegularFile {
  uint32_t id = 0;
  std::string path;   // absolute, as in the job's namespace
  uint64_t size = 0;  // 0 when not recorded
  bool has_size = false;
  bool written = false;  // open for writing
  bool append = false;   // with O_APPEND
  bool readable = false;
  uint64_t position = 0;
  bool ghost =
      false;  // its name was gone: the content is in the images or under an extra link (which is listed too)
  std::string build_id;  // of a program or library (build_id.h), zeros behind it up to a multiple of 4
};
// `remaps_content` is remap-fpath.img, empty when the dump has none: it is what tells the deleted files.
absl::StatusOr<std::vector<RegularFile>> ParseRegularFiles(absl::string_view files_content,
                                                           absl::string_view remaps_content = {});

// A lock of flock(2) or fcntl(2) that a process of the job has through a descriptor.
struct FileLock {
  enum class Kind { kFlock, kPosix, kOfd };
  Kind kind = Kind::kFlock;
  bool exclusive = false;
  pid_t pid = 0;
  int fd = -1;
  int64_t start = 0, length = 0;  // in bytes; length 0: to the end, however long the file becomes
};
// `content` is filelocks.img. Leases are left out.
absl::StatusOr<std::vector<FileLock>> ParseFileLocks(absl::string_view content);
// The number in the name of the process's fdinfo-N.img, from ids-PID.img.
absl::StatusOr<uint32_t> ParseDescriptorsId(absl::string_view ids_content);
// The numbers of the process's namespaces in it: network, IPC, host name, mounts, user, cgroup.
absl::StatusOr<std::vector<uint32_t>> ParseNamespaceIds(absl::string_view ids_content);
// RegularFile::id by descriptor, from fdinfo-N.img.
absl::StatusOr<std::map<int, uint32_t>> ParseRegularDescriptors(absl::string_view fdinfo_content);

// The same files.img with every periodic timerfd running. The kernel starts such a timer's next period when
// its expiry is read; until then it says that nothing remains, which CRIU would restore as a timer that never
// fires again. It is given a whole period instead. Unchanged, byte for byte, when there is nothing to do.
absl::StatusOr<std::string> RearmExpiredTimers(absl::string_view files_content);

// The same core-TID.img without the signal for its parent's death (PR_SET_PDEATHSIG). Unchanged, byte for
// byte, when there is none.
absl::StatusOr<std::string> ForgetDeathSignal(absl::string_view core_content);

// The same tty-info.img without the sessions of terminals whose leader is not in `tree`, and with them of
// whom each is the controlling terminal. CRIU looks for the leader to give the terminal to, and fails where
// there is none. Unchanged, byte for byte, when there is nothing to do.
absl::StatusOr<std::string> ForgetForeignSessions(absl::string_view tty_info_content,
                                                  const std::vector<PstreeEntry>& tree);

// The same tcp-stream-*.img with all that it has to send told as sent and not acknowledged, which the kernel
// sends again. CRIU writes what was never sent into the socket as soon as it has made it, outside TCP's
// repair mode; the other end may not be back yet, and its machine answers with a reset (soccr.c,
// libsoccr_restore_queue). Unchanged, byte for byte, when there is nothing to do.
absl::StatusOr<std::string> TellUnsentAsSent(absl::string_view tcp_stream_content);

// The same files.img without the sizes of files that were open for writing, and of those of these paths: CRIU
// insists on the recorded size, and a job that ran on after its image has written on.
absl::StatusOr<std::string> ForgetSizes(absl::string_view files_content, const std::set<std::string>& paths);

// The same files.img in which anything may take the place of files that are given from outside (`--external
// file[…]`), a pipe too, or what others write to: it is left where it is.
absl::StatusOr<std::string> ForgetFilesOutside(absl::string_view files_content);

// The same files.img in which files that are given from outside (by their names there, "file[…]") are such of
// these paths. Unchanged, byte for byte, when there is none.
absl::StatusOr<std::string> NameFilesOutside(absl::string_view files_content,
                                             const std::map<std::string, std::string>& paths);
// The names of those that are still given from outside.
absl::StatusOr<std::set<std::string>> FilesStillOutside(absl::string_view files_content);

// The same files.img without the build IDs of these files, which were compared already.
absl::StatusOr<std::string> ForgetBuildIds(absl::string_view files_content,
                                           const std::set<std::string>& paths);
// The same of their modes: CRIU does not mind then that they have others.
absl::StatusOr<std::string> ForgetModes(absl::string_view files_content, const std::set<std::string>& paths);

}  // namespace rekindle::criu
