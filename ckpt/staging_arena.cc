#include "ckpt/staging_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/parallel.h"
#include "base/status.h"

namespace rekindle::ckpt {
namespace {

constexpr uint64_t kHugePageBytes = 2u << 20;

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Touches [base, base+bytes) from two threads where there may be one more: most of the time goes into the
// kernel clearing pages.
void Touch(std::byte* base, uint64_t bytes) {
  uint64_t half = RoundUp(bytes / 2, kHugePageBytes);
  auto populate = [base](uint64_t from, uint64_t to) {
    // A failure only means that the pages are made later, on the first copy into them.
    if (to > from) ::madvise(base + from, to - from, MADV_POPULATE_WRITE);
  };
  if (bytes < 8 * kHugePageBytes) {
    populate(0, bytes);
    return;
  }
  InParallel(2, [&](size_t i) { populate(i == 0 ? 0 : half, i == 0 ? half : bytes); });
}

// A file that is gone once it is closed.
absl::StatusOr<UniqueFd> OpenUnnamed(const std::string& directory) {
  absl::StatusOr<UniqueFd> file = OpenFile(directory, O_TMPFILE | O_RDWR);
  if (!absl::IsUnimplemented(file.status())) return file;
  // NFS knows only files with names.
  std::string path = absl::StrCat(directory, "/staging.XXXXXX");
  UniqueFd named(::mkostemp(path.data(), O_CLOEXEC));
  if (!named.valid() || ::unlink(path.c_str()) != 0) return ErrnoStatus(errno, path);
  return named;
}

}  // namespace

void KeptStaging::Drop() {
  if (base_) ::munmap(base_, reserved_bytes_);
  base_ = nullptr;
  image_ = {};
}

void KeptStaging::LetKernelHaveIt() {
  if (base_) ::madvise(base_, reserved_bytes_, MADV_FREE);
}

absl::StatusOr<std::unique_ptr<StagingArena>> StagingArena::Create(uint64_t expected_bytes,
                                                                   uint64_t budget_bytes,
                                                                   const std::string& spill_directory,
                                                                   KeptStaging* kept) {
  std::unique_ptr<StagingArena> arena(new StagingArena(budget_bytes, spill_directory, kept));
  RK_RETURN_IF_ERROR(arena->ReserveAndTouch(RoundUp(std::min(expected_bytes, budget_bytes), kBlockBytes)));
  return arena;
}

absl::Status StagingArena::ReserveAndTouch(uint64_t bytes) {
  if (kept_ && !kept_->empty() && kept_->reserved_bytes_ >= bytes) {
    base_ = std::exchange(kept_->base_, nullptr);
    reserved_bytes_ = kept_->reserved_bytes_;
    kept_->image_ = {};
  } else {
    if (kept_) kept_->Drop();
    RK_RETURN_IF_ERROR(Reserve(bytes));
  }
  // What was kept and is still there is not cleared again.
  Touch(base_, bytes);
  return absl::OkStatus();
}

absl::Status StagingArena::Reserve(uint64_t bytes) {
  // Address space for the whole budget, so that a job that grew since it was measured still goes to RAM.
  reserved_bytes_ = RoundUp(std::max(bytes, budget_bytes_), kBlockBytes);
  uint64_t mapped = reserved_bytes_ + kHugePageBytes;
  void* address =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("reserving ", FormatBytes(mapped), " of memory for staging"));
  }
  // Aligned, so that every block can be made of whole huge pages; the slack is given back.
  uintptr_t start = reinterpret_cast<uintptr_t>(address);
  uintptr_t aligned = RoundUp(start, kHugePageBytes);
  if (aligned > start) ::munmap(address, aligned - start);
  uint64_t tail = mapped - (aligned - start) - reserved_bytes_;
  if (tail > 0) ::munmap(reinterpret_cast<void*>(aligned + reserved_bytes_), tail);
  base_ = reinterpret_cast<std::byte*>(aligned);
  ::madvise(base_, reserved_bytes_, MADV_HUGEPAGE);  // where the kernel has none, small pages do
  ::madvise(base_, reserved_bytes_, MADV_DONTDUMP);
  return absl::OkStatus();
}

StagingArena::~StagingArena() {
  if (base_ && kept_ && ::madvise(base_, reserved_bytes_, MADV_FREE) == 0) {
    kept_->base_ = base_;
    kept_->reserved_bytes_ = reserved_bytes_;
    // What was spilled goes now.
    for (auto& [name, pages] : image_.objects) {
      std::erase_if(pages, [this](const store::PagesInMemory& p) {
        return p.bytes.data() < base_ || p.bytes.data() + p.bytes.size() > base_ + reserved_bytes_;
      });
    }
    kept_->image_ = std::move(image_);
  } else if (base_) {
    ::munmap(base_, reserved_bytes_);
  }
  for (void* block : spill_blocks_) ::munmap(block, kBlockBytes);
}

absl::StatusOr<absl::Span<std::byte>> StagingArena::NextBlock() {
  absl::MutexLock lock(&mutex_);
  if (used_bytes_ + kBlockBytes > std::min(reserved_bytes_, RoundUp(budget_bytes_, kBlockBytes))) {
    return NextSpillBlock();
  }
  absl::Span<std::byte> block(base_ + used_bytes_, kBlockBytes);
  used_bytes_ += kBlockBytes;
  return block;
}

absl::StatusOr<absl::Span<std::byte>> StagingArena::NextSpillBlock() {
  std::string what = absl::StrCat("staging beyond the memory budget of ", FormatBytes(budget_bytes_), " in ",
                                  spill_directory_);
  if (!spill_file_.valid()) {
    auto file = OpenUnnamed(spill_directory_);
    if (!file.ok()) return Annotate(file.status(), what);
    spill_file_ = *std::move(file);
  }
  // Allocated before it is mapped: a full disk must be an error here and not a SIGBUS at the first touch.
  int error = ::posix_fallocate(spill_file_.get(), static_cast<off_t>(spilled_bytes_), kBlockBytes);
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": the disk is full; free some, or allow more memory (--staging-memory)"));
  }
  if (error != 0) return ErrnoStatus(error, what);
  void* address = ::mmap(nullptr, kBlockBytes, PROT_READ | PROT_WRITE, MAP_SHARED, spill_file_.get(),
                         static_cast<off_t>(spilled_bytes_));
  if (address == MAP_FAILED) return ErrnoStatus(errno, what);
  spill_blocks_.push_back(address);
  spilled_bytes_ += kBlockBytes;
  return absl::Span<std::byte>(static_cast<std::byte*>(address), kBlockBytes);
}

uint64_t StagingArena::spilled_bytes() const {
  absl::MutexLock lock(&mutex_);
  return spilled_bytes_;
}

}  // namespace rekindle::ckpt
