#include "ckpt/page_marks.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/process_stat.h"
#include "base/status.h"
#include "ckpt/pagemap_entry.h"
#include "dedup_store/store.h"

namespace rekindle::ckpt {
namespace {

class ProcPageMarks : public PageMarks {
 public:
  absl::StatusOr<uint64_t> StartTicks(pid_t pid) override {
    RK_ASSIGN_OR_RETURN(ProcessStat stat, ReadProcessStat(pid));
    return stat.start_ticks;
  }

  absl::StatusOr<size_t> Read(pid_t pid, uint64_t first_page, absl::Span<uint64_t> entries) override {
    const std::string path = absl::StrCat("/proc/", pid, "/pagemap");
    RK_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_RDONLY));
    absl::StatusOr<size_t> filled = ReadPagemapEntries(file.get(), first_page, entries);
    if (!filled.ok()) return Annotate(filled.status(), path);
    return filled;
  }

  absl::Status Clear(pid_t pid) override {
    const std::string path = absl::StrCat("/proc/", pid, "/clear_refs");
    RK_ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_WRONLY));
    return WriteFully(file.get(), "4", 1, path);
  }
};

}  // namespace

absl::StatusOr<size_t> ReadPagemapEntries(int pagemap, uint64_t first_page, absl::Span<uint64_t> entries) {
  size_t filled = 0;
  while (filled < entries.size()) {
    const auto at = static_cast<off_t>((first_page + filled) * sizeof(uint64_t));
    const ssize_t n = ::pread(pagemap, &entries[filled], (entries.size() - filled) * sizeof(uint64_t), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading a pagemap");
    if (n < static_cast<ssize_t>(sizeof(uint64_t))) break;
    filled += static_cast<size_t>(n) / sizeof(uint64_t);
  }
  return filled;
}

std::unique_ptr<PageMarks> KernelPageMarks() { return std::make_unique<ProcPageMarks>(); }

absl::Status CheckPageMarks(PageMarks& marks) {
  void* memory =
      ::mmap(nullptr, store::kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "mapping a page");
  absl::Cleanup unmap = [memory] { ::munmap(memory, store::kPageSize); };
  const pid_t pid = ::getpid();
  auto written = [&]() -> absl::StatusOr<bool> {
    uint64_t entry = 0;
    RK_ASSIGN_OR_RETURN(size_t read,
                        marks.Read(pid, reinterpret_cast<uintptr_t>(memory) / store::kPageSize, {&entry, 1}));
    if (read != 1 || (entry & ENTRY_PRESENT) == 0 || (entry & ENTRY_FRAME) == 0) {
      return absl::FailedPreconditionError(
          "/proc/self/pagemap does not tell in which frames pages lie: it does to root, with CAP_SYS_ADMIN");
    }
    return (entry & ENTRY_WRITTEN) != 0;
  };
  volatile char* byte = static_cast<volatile char*>(memory);
  *byte = 1;
  RK_ASSIGN_OR_RETURN(bool at_first, written());
  RK_RETURN_IF_ERROR(marks.Clear(pid));
  RK_ASSIGN_OR_RETURN(bool after_clearing, written());
  *byte = 2;
  RK_ASSIGN_OR_RETURN(bool after_writing, written());
  if (at_first && !after_clearing && after_writing) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this kernel does not track written pages: it was built without CONFIG_MEM_SOFT_DIRTY");
}

}  // namespace rekindle::ckpt
