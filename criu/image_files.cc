#include "criu/image_files.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"
#include "criu/image_records.h"
#include "criu/images.pb.h"
#include "criu/semaphore_mark.h"

namespace rekindle::criu {
namespace {

// CRIU's bits in Vma::status.
constexpr uint32_t kAreaRegular = 1u << 0;
constexpr uint32_t kAreaVsyscall = 1u << 2;
constexpr uint32_t kAreaVdso = 1u << 3;
constexpr uint32_t kAreaFilePrivate = 1u << 6;
constexpr uint32_t kAreaFileShared = 1u << 7;
constexpr uint32_t kAreaAnonymousPrivate = 1u << 9;
constexpr uint32_t kAreaSysvIpc = 1u << 10;
constexpr uint32_t kAreaSocket = 1u << 11;
constexpr uint32_t kAreaVvar = 1u << 12;
constexpr uint32_t kAreaAioRing = 1u << 13;
constexpr uint32_t kAreaShadowStack = 1u << 15;
constexpr uint32_t kAreaGuard = 1u << 16;
constexpr uint32_t kAreaUprobes = 1u << 17;
constexpr uint32_t kAreaPlugin = 1u << 27;

bool IsPid(uint32_t value) { return value <= (1u << 22); }  // the kernel's upper limit for pid_max

absl::StatusOr<pb::Mm> ParseMmMessage(absl::string_view content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("mm", content, kMmMagic));
  pb::Mm mm;
  RK_RETURN_IF_ERROR(reader.Only(&mm));
  if (mm.areas_size() == 0) return Damaged("mm", "it has no memory areas");
  for (const pb::Vma& area : mm.areas()) {
    if (area.start() % kPageBytes != 0 || area.end() % kPageBytes != 0 || area.start() >= area.end()) {
      return Damaged("mm", absl::StrFormat("a memory area from %#x to %#x", area.start(), area.end()));
    }
  }
  return mm;
}

// Appends the entry with its place in the pages file.
absl::Status AddEntry(const pb::PagemapEntry& entry, uint64_t* file_pages, Pagemap* pagemap) {
  constexpr uint32_t kKnownFlags = kPageInParent | kPageLazy | kPagePresent;
  constexpr uint64_t kMaxPages = (uint64_t{1} << 63) / kPageBytes;
  if (!entry.unknown_fields().empty() || (entry.flags() & ~kKnownFlags) != 0) {
    return absl::UnimplementedError(absl::StrFormat(
        "reading a CRIU pagemap image: the entry at %#x has flags %#x or fields that Rekindle does not "
        "know, such as compressed pages; dump without CRIU's own compression",
        entry.address(), entry.flags()));
  }
  PagemapEntry result;
  result.address = entry.address();
  result.pages = entry.has_page_count() ? entry.page_count() : entry.old_page_count();
  if (entry.has_flags()) {
    result.flags = entry.flags();
  } else {
    result.flags = entry.in_parent() ? kPageInParent : kPagePresent;
  }
  if (!entry.has_address() || result.address % kPageBytes != 0 || result.pages == 0 ||
      result.pages > kMaxPages || result.address / kPageBytes > (~uint64_t{0}) / kPageBytes - result.pages ||
      *file_pages > kMaxPages) {
    return Damaged("pagemap", absl::StrFormat("an entry of %d pages at %#x", result.pages, result.address));
  }
  if ((result.flags & kPagePresent) != 0) {
    result.file_offset = *file_pages * kPageBytes;
    *file_pages += result.pages;
  }
  pagemap->entries.push_back(result);
  return absl::OkStatus();
}

bool IsWritten(const pb::RegularFile& file) { return (file.flags() & O_ACCMODE) != O_RDONLY; }

// files.img with `change` applied to each entry; the very same bytes when it never returns true.
absl::StatusOr<std::string> RewriteFiles(absl::string_view content,
                                         const std::function<bool(pb::FileEntry&)>& change) {
  RecordWriter writer(kFilesMagic);
  bool changed = false;
  RK_RETURN_IF_ERROR(ForEachFile(content, [&](pb::FileEntry& entry) {
    changed |= change(entry);
    writer.Add(entry);
  }));
  return changed ? writer.Take() : std::string(content);
}

}  // namespace

absl::StatusOr<std::vector<PstreeEntry>> ParsePstree(absl::string_view content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("pstree", content, kPstreeMagic));
  std::vector<PstreeEntry> entries;
  while (!reader.AtEnd()) {
    pb::PstreeEntry record;
    RK_RETURN_IF_ERROR(reader.Next(&record));
    if (record.pid() == 0 || !IsPid(record.pid()) || !IsPid(record.parent_pid()) ||
        !IsPid(record.process_group()) || !IsPid(record.session())) {
      return Damaged("pstree", absl::StrCat("a process with PID ", record.pid()));
    }
    PstreeEntry entry;
    entry.pid = static_cast<pid_t>(record.pid());
    entry.ppid = static_cast<pid_t>(record.parent_pid());
    entry.pgid = static_cast<pid_t>(record.process_group());
    entry.sid = static_cast<pid_t>(record.session());
    for (int i = 0; i < record.threads_size(); ++i) {
      // The first is the process itself. Of a dead one CRIU leaves the field as its memory happened to be,
      // and never reads it.
      const uint32_t thread = i == 0 ? record.pid() : record.threads(i);
      if (thread == 0 || !IsPid(thread)) return Damaged("pstree", absl::StrCat("a thread with ID ", thread));
      entry.threads.push_back(static_cast<pid_t>(thread));
    }
    entries.push_back(std::move(entry));
  }
  if (entries.empty()) return Damaged("pstree", "it holds no process");
  return entries;
}

absl::StatusOr<Inventory> ParseInventory(absl::string_view content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("inventory", content, kInventoryMagic, 0));
  pb::Inventory record;
  RK_RETURN_IF_ERROR(reader.Only(&record));
  if (!record.has_image_version()) return Damaged("inventory", "it has no version");
  Inventory inventory;
  inventory.image_version = record.image_version();
  inventory.tcp_close = record.tcp_close();
  inventory.network_lock_method = record.network_lock_method();
  inventory.run = record.dump_criu_run_id();
  return inventory;
}

uint64_t Pagemap::present_pages() const {
  uint64_t pages = 0;
  for (const PagemapEntry& entry : entries) {
    if ((entry.flags & kPagePresent) != 0) pages += entry.pages;
  }
  return pages;
}

absl::StatusOr<Pagemap> ParsePagemap(absl::string_view content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("pagemap", content, kPagemapMagic));
  pb::PagemapHead head;
  RK_RETURN_IF_ERROR(reader.Next(&head));
  if (!head.has_pages_id()) return Damaged("pagemap", "it does not name its pages file");
  Pagemap pagemap;
  pagemap.pages_id = head.pages_id();
  uint64_t file_pages = 0;
  pb::PagemapEntry entry;
  while (!reader.AtEnd()) {
    RK_RETURN_IF_ERROR(reader.Next(&entry));
    RK_RETURN_IF_ERROR(AddEntry(entry, &file_pages, &pagemap));
  }
  return pagemap;
}

std::string SerializePagemap(const Pagemap& pagemap) {
  RecordWriter writer(kPagemapMagic);
  pb::PagemapHead head;
  head.set_pages_id(pagemap.pages_id);
  writer.Add(head);
  pb::PagemapEntry record;
  for (const PagemapEntry& entry : pagemap.entries) {
    record.set_address(entry.address);
    record.set_old_page_count(0);
    record.set_flags(entry.flags);
    record.set_page_count(entry.pages);
    writer.Add(record);
  }
  return writer.Take();
}

namespace {
constexpr uint32_t kSpecial = kAreaVsyscall | kAreaVdso | kAreaSysvIpc | kAreaSocket | kAreaVvar |
                              kAreaAioRing | kAreaShadowStack | kAreaGuard | kAreaUprobes | kAreaPlugin;
}  // namespace

bool Vma::of_file() const { return (status & (kAreaFilePrivate | kAreaFileShared)) != 0; }

bool Vma::private_file() const {
  constexpr uint32_t kNeeded = kAreaRegular | kAreaFilePrivate;
  return (status & kNeeded) == kNeeded && (status & kSpecial) == 0 && (flags & MAP_PRIVATE) != 0 &&
         (flags & (MAP_ANONYMOUS | MAP_LOCKED | MAP_HUGETLB)) == 0;
}

bool Vma::writable_file() const {
  if ((status & kAreaFileShared) == 0) return false;
  return (prot & PROT_WRITE) != 0 || (file_flags & O_ACCMODE) != O_RDONLY;
}

bool Vma::plain_anonymous() const {
  constexpr uint32_t kNeeded = kAreaRegular | kAreaAnonymousPrivate;
  return (status & kNeeded) == kNeeded && (status & kSpecial) == 0 && (flags & MAP_PRIVATE) != 0 &&
         (flags & MAP_ANONYMOUS) != 0 && (flags & (MAP_LOCKED | MAP_HUGETLB)) == 0;
}

absl::StatusOr<std::vector<Vma>> ParseMm(absl::string_view content) {
  RK_ASSIGN_OR_RETURN(pb::Mm mm, ParseMmMessage(content));
  std::vector<Vma> areas;
  areas.reserve(static_cast<size_t>(mm.areas_size()));
  for (const pb::Vma& record : mm.areas()) {
    Vma area;
    area.start = record.start();
    area.end = record.end();
    area.page_offset = record.page_offset();
    area.shmid = record.shmid();
    area.prot = record.protection();
    area.flags = record.flags();
    area.status = record.status();
    area.madv = record.advice_bits();
    area.file_flags = record.file_flags();
    areas.push_back(area);
  }
  return areas;
}

absl::StatusOr<bool> HugePagesDisabled(absl::string_view mm_content) {
  RK_ASSIGN_OR_RETURN(pb::Mm mm, ParseMmMessage(mm_content));
  return mm.huge_pages_disabled();
}

absl::StatusOr<DumpStats> ParseDumpStats(absl::string_view content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader,
                      RecordReader::Open("statistics", content, kStatsMagic, kServiceMagic));
  pb::Statistics record;
  RK_RETURN_IF_ERROR(reader.Only(&record));
  if (!record.has_dump()) return Damaged("statistics", "it holds none of a dump");
  DumpStats stats;
  stats.freezing_us = record.dump().freezing_us();
  stats.frozen_us = record.dump().frozen_us();
  stats.memdump_us = record.dump().memdump_us();
  stats.memwrite_us = record.dump().memwrite_us();
  stats.pages_scanned = record.dump().pages_scanned();
  stats.pages_written = record.dump().pages_written();
  return stats;
}

absl::StatusOr<std::vector<RegularFile>> ParseRegularFiles(absl::string_view files_content,
                                                           absl::string_view remaps_content) {
  std::set<uint32_t> remapped;
  RK_RETURN_IF_ERROR(
      ForEachRemap(remaps_content, [&](const pb::RemapEntry& entry) { remapped.insert(entry.file_id()); }));
  std::vector<RegularFile> files;
  RK_RETURN_IF_ERROR(ForEachFile(files_content, [&](const pb::FileEntry& entry) {
    if (entry.type() != kRegularFileType || !entry.has_regular() || entry.regular().external()) return;
    RegularFile file;
    file.id = entry.regular().id();
    file.path = entry.regular().path();
    file.has_size = entry.regular().has_size();
    file.size = entry.regular().size();
    file.written = IsWritten(entry.regular());
    file.append = (entry.regular().flags() & O_APPEND) != 0;
    file.readable = (entry.regular().flags() & O_ACCMODE) != O_WRONLY;
    file.position = entry.regular().position();
    file.ghost = remapped.count(file.id) != 0;
    for (uint32_t word : entry.regular().build_id()) {
      file.build_id.append(reinterpret_cast<const char*>(&word), sizeof word);
    }
    files.push_back(std::move(file));
  }));
  return files;
}

absl::StatusOr<std::vector<FileLock>> ParseFileLocks(absl::string_view content) {
  constexpr uint32_t kPosix = 1, kFlock = 2, kOfd = 4;
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("filelocks", content, kFileLocksMagic));
  std::vector<FileLock> locks;
  while (!reader.AtEnd()) {
    pb::FileLock record;
    RK_RETURN_IF_ERROR(reader.Next(&record));
    if (record.kind() != kPosix && record.kind() != kFlock && record.kind() != kOfd) continue;
    // A flock may be of no type that locks anything (LOCK_MAND of old kernels).
    if (record.type() != F_RDLCK && record.type() != F_WRLCK) continue;
    if (record.start() < 0 || record.length() < 0 || record.fd() < 0) {
      return Damaged("filelocks", absl::StrCat("a lock of ", record.length(), " bytes at ", record.start(),
                                               " through descriptor ", record.fd()));
    }
    FileLock lock;
    if (record.kind() != kFlock) {
      lock.kind = record.kind() == kPosix ? FileLock::Kind::kPosix : FileLock::Kind::kOfd;
    }
    lock.exclusive = record.type() == F_WRLCK;
    lock.pid = record.pid();
    lock.fd = record.fd();
    lock.start = record.start();
    lock.length = record.length();
    locks.push_back(lock);
  }
  return locks;
}

absl::StatusOr<uint32_t> ParseDescriptorsId(absl::string_view ids_content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("ids", ids_content, kIdsMagic));
  pb::IdsOfTask ids;
  RK_RETURN_IF_ERROR(reader.Only(&ids));
  return ids.files_id();
}

absl::StatusOr<std::vector<uint32_t>> ParseNamespaceIds(absl::string_view ids_content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("ids", ids_content, kIdsMagic));
  pb::IdsOfTask ids;
  RK_RETURN_IF_ERROR(reader.Only(&ids));
  return std::vector<uint32_t>{ids.net_id(), ids.ipc_id(),  ids.uts_id(),
                               ids.mnt_id(), ids.user_id(), ids.cgroup_id()};
}

absl::StatusOr<std::map<int, uint32_t>> ParseRegularDescriptors(absl::string_view fdinfo_content) {
  std::map<int, uint32_t> files;
  RK_RETURN_IF_ERROR(ForEachRecord<pb::Descriptor>(
      "fdinfo", fdinfo_content, kFdinfoMagic, [&](const pb::Descriptor& record) {
        if (record.type() == kRegularFileType) files[static_cast<int>(record.fd())] = record.file_id();
      }));
  return files;
}

bool HasEndedInImage(const std::string& directory, pid_t pid) {
  const absl::StatusOr<std::string> content = ReadFile(absl::StrCat(directory, "/core-", pid, ".img"));
  if (!content.ok()) return false;
  absl::StatusOr<RecordReader> reader = RecordReader::Open("core", *content, kCoreMagic);
  pb::Core core;
  return reader.ok() && reader->Next(&core).ok() && HasEnded(core);
}

absl::StatusOr<std::vector<rlimit>> ParseLimits(absl::string_view core_content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("core", core_content, kCoreMagic));
  pb::Core core;
  RK_RETURN_IF_ERROR(reader.Next(&core));
  std::vector<rlimit> limits;
  for (const pb::ResourceLimit& limit : core.task().limits().limits())
    limits.push_back({limit.soft(), limit.hard()});
  return limits;
}

absl::StatusOr<bool> HasArmedTimer(absl::string_view core_content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("core", core_content, kCoreMagic));
  pb::Core core;
  RK_RETURN_IF_ERROR(reader.Next(&core));
  const pb::TaskTimers& timers = core.task().timers();
  auto armed = [](const pb::IntervalTimer& timer) {
    return timer.value_seconds() != 0 || timer.value_microseconds() != 0;
  };
  if (armed(timers.real()) || armed(timers.virtual_time()) || armed(timers.profiling())) return true;
  for (const pb::PosixTimer& timer : timers.posix()) {
    if (timer.value_seconds() != 0 || timer.value_nanoseconds() != 0) return true;
  }
  return false;
}

absl::StatusOr<Owner> ParseOwner(absl::string_view core_content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("core", core_content, kCoreMagic));
  pb::Core core;
  RK_RETURN_IF_ERROR(reader.Next(&core));
  if (!core.thread().has_credentials()) return Damaged("core", "it does not say whose process it is");
  const pb::Credentials& found = core.thread().credentials();
  return Owner{found.user(), found.group(), {found.groups().begin(), found.groups().end()}};
}

absl::StatusOr<bool> HasArmedTimerFile(absl::string_view files_content) {
  bool armed = false;
  RK_RETURN_IF_ERROR(ForEachFile(files_content, [&](const pb::FileEntry& entry) {
    armed |= entry.timer().value_seconds() != 0 || entry.timer().value_nanoseconds() != 0;
  }));
  return armed;
}

absl::StatusOr<size_t> CountSemaphores(absl::string_view files_content) {
  size_t count = 0;
  RK_RETURN_IF_ERROR(ForEachFile(files_content, [&](const pb::FileEntry& entry) {
    count += (entry.event().flags() & SEMAPHORE_MARK) != 0 ? 1 : 0;
  }));
  return count;
}

absl::StatusOr<bool> HasListeningSocket(absl::string_view files_content) {
  constexpr uint32_t kListens = 10;  // TCP_LISTEN, of Unix sockets too
  bool listens = false;
  RK_RETURN_IF_ERROR(ForEachFile(files_content, [&](const pb::FileEntry& entry) {
    listens |= entry.internet_socket().state() == kListens || entry.unix_socket().state() == kListens;
  }));
  return listens;
}

std::string Describe(const TcpConnection& connection) {
  const auto end = [&](const std::array<uint32_t, 4>& address, uint16_t port) {
    char text[INET6_ADDRSTRLEN] = "?";
    ::inet_ntop(connection.family, address.data(), text, sizeof text);
    return connection.family == AF_INET6 ? absl::StrCat("[", text, "]:", port)
                                         : absl::StrCat(text, ":", port);
  };
  return absl::StrCat(end(connection.local, connection.local_port), " to ",
                      end(connection.remote, connection.remote_port));
}

absl::StatusOr<std::vector<TcpConnection>> TcpConnections(absl::string_view files_content) {
  std::vector<TcpConnection> connections;
  RK_RETURN_IF_ERROR(ForEachFile(files_content, [&](const pb::FileEntry& entry) {
    const pb::InternetSocket& socket = entry.internet_socket();
    if (socket.type() != SOCK_STREAM || socket.remote_port() == 0) return;
    TcpConnection connection{static_cast<int>(socket.family()),
                             {},
                             {},
                             static_cast<uint16_t>(socket.local_port()),
                             static_cast<uint16_t>(socket.remote_port())};
    for (int i = 0; i < std::min(socket.local_address_size(), 4); ++i)
      connection.local[static_cast<size_t>(i)] = socket.local_address(i);
    for (int i = 0; i < std::min(socket.remote_address_size(), 4); ++i)
      connection.remote[static_cast<size_t>(i)] = socket.remote_address(i);
    connections.push_back(connection);
  }));
  return connections;
}

absl::StatusOr<std::vector<TcpConnection>> TcpLocalEnds(absl::string_view files_content) {
  std::vector<TcpConnection> ends;
  RK_RETURN_IF_ERROR(ForEachFile(files_content, [&](const pb::FileEntry& entry) {
    const pb::InternetSocket& socket = entry.internet_socket();
    if (socket.type() != SOCK_STREAM || socket.local_port() == 0) return;
    ends.push_back(
        {static_cast<int>(socket.family()), {}, {}, static_cast<uint16_t>(socket.local_port()), 0});
    for (int i = 0; i < std::min(socket.local_address_size(), 4); ++i)
      ends.back().local[static_cast<size_t>(i)] = socket.local_address(i);
  }));
  return ends;
}

absl::StatusOr<std::string> RearmExpiredTimers(absl::string_view files_content) {
  return RewriteFiles(files_content, [](pb::FileEntry& entry) {
    const pb::TimerFile& timer = entry.timer();
    bool periodic = timer.interval_seconds() != 0 || timer.interval_nanoseconds() != 0;
    bool expired = timer.value_seconds() == 0 && timer.value_nanoseconds() == 0 && timer.ticks() != 0;
    // CRIU sets an absolute one to a time that has passed: it fires at once and goes on.
    bool absolute = (timer.settime_flags() & TFD_TIMER_ABSTIME) != 0;
    if (!entry.has_timer() || !periodic || !expired || absolute) return false;
    entry.mutable_timer()->set_value_seconds(timer.interval_seconds());
    entry.mutable_timer()->set_value_nanoseconds(timer.interval_nanoseconds());
    return true;
  });
}

absl::StatusOr<std::string> ForgetDeathSignal(absl::string_view core_content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader, RecordReader::Open("core", core_content, kCoreMagic));
  pb::Core core;
  RK_RETURN_IF_ERROR(reader.Next(&core));
  if (core.thread().parent_death_signal() == 0) return std::string(core_content);
  core.mutable_thread()->clear_parent_death_signal();
  RecordWriter writer(kCoreMagic);
  writer.Add(core);
  return absl::StrCat(writer.Take(), reader.rest());
}

absl::StatusOr<std::string> ForgetForeignSessions(absl::string_view tty_info_content,
                                                  const std::vector<PstreeEntry>& tree) {
  std::set<uint32_t> sessions = {0};
  for (const PstreeEntry& process : tree) {
    if (process.pid == process.sid) sessions.insert(static_cast<uint32_t>(process.sid));
  }
  RecordWriter writer(kTtyInfoMagic);
  bool changed = false;
  RK_RETURN_IF_ERROR(
      ForEachRecord<pb::TtyInfo>("terminal", tty_info_content, kTtyInfoMagic, [&](pb::TtyInfo& terminal) {
        if (!sessions.contains(terminal.session())) {
          terminal.set_session(0);  // CRIU requires them
          terminal.set_foreground_group(0);
          changed = true;
        }
        writer.Add(terminal);
      }));
  return changed ? writer.Take() : std::string(tty_info_content);
}

absl::StatusOr<std::string> TellUnsentAsSent(absl::string_view tcp_stream_content) {
  RK_ASSIGN_OR_RETURN(RecordReader reader,
                      RecordReader::Open("TCP connection", tcp_stream_content, kTcpStreamMagic));
  pb::TcpStream stream;
  RK_RETURN_IF_ERROR(reader.Next(&stream));
  if (stream.unsent_length() > stream.sending_length()) {
    return Damaged("TCP connection",
                   absl::StrCat(stream.unsent_length(), " bytes not sent of ", stream.sending_length()));
  }
  if (stream.unsent_length() == 0) return std::string(tcp_stream_content);
  stream.set_unsent_length(0);
  RecordWriter writer(kTcpStreamMagic);
  writer.Add(stream);
  return absl::StrCat(writer.Take(), reader.rest());
}

absl::StatusOr<std::string> ForgetSizes(absl::string_view files_content, const std::set<std::string>& paths) {
  return RewriteFiles(files_content, [&paths](pb::FileEntry& entry) {
    if (!entry.has_regular() || !entry.regular().has_size()) return false;
    if (!IsWritten(entry.regular()) && !paths.contains(entry.regular().path())) return false;
    entry.mutable_regular()->clear_size();
    return true;
  });
}

absl::StatusOr<std::string> ForgetFilesOutside(absl::string_view files_content) {
  constexpr uint64_t kStay = UINT64_MAX;  // to CRIU
  return RewriteFiles(files_content, [](pb::FileEntry& entry) {
    if (!entry.regular().external()) return false;
    entry.mutable_regular()->set_position(kStay);
    entry.mutable_regular()->clear_size();
    entry.mutable_regular()->clear_mode();
    return true;
  });
}

absl::StatusOr<std::string> NameFilesOutside(absl::string_view files_content,
                                             const std::map<std::string, std::string>& paths) {
  return RewriteFiles(files_content, [&paths](pb::FileEntry& entry) {
    if (!entry.regular().external()) return false;
    const auto known = paths.find(entry.regular().path());
    if (known == paths.end()) return false;
    entry.mutable_regular()->set_path(known->second);
    entry.mutable_regular()->clear_external();
    return true;
  });
}

absl::StatusOr<std::set<std::string>> FilesStillOutside(absl::string_view files_content) {
  std::set<std::string> names;
  RK_RETURN_IF_ERROR(ForEachFile(files_content, [&](const pb::FileEntry& entry) {
    if (entry.regular().external()) names.insert(entry.regular().path());
  }));
  return names;
}

absl::StatusOr<std::string> ForgetBuildIds(absl::string_view files_content,
                                           const std::set<std::string>& paths) {
  return RewriteFiles(files_content, [&paths](pb::FileEntry& entry) {
    if (entry.regular().build_id_size() == 0 || !paths.contains(entry.regular().path())) return false;
    entry.mutable_regular()->clear_build_id();
    return true;
  });
}

absl::StatusOr<std::string> ForgetModes(absl::string_view files_content, const std::set<std::string>& paths) {
  return RewriteFiles(files_content, [&paths](pb::FileEntry& entry) {
    if (!entry.regular().has_mode() || !paths.contains(entry.regular().path())) return false;
    entry.mutable_regular()->clear_mode();
    return true;
  });
}

}  // namespace rekindle::criu
