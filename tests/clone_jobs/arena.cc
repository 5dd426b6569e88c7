#include "tests/clone_jobs/arena.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/gpu_jobs/state_file.h"

namespace rekindle::clone_jobs {
namespace {

using gpu_jobs::Die;

constexpr int kAll = PROT_READ | PROT_WRITE;
constexpr size_t kMostPages = 48;  // of a step

// <linux/fs.h> from Linux 6.11 on.
struct ProcmapQuery {
  uint64_t size, query_flags, query_addr, vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
  uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
  uint64_t vma_name_addr, build_id_addr;
};
constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);

void* At(uint64_t* page) { return page; }

}  // namespace

void Arena::Prepare(uintptr_t address, size_t pages, ShadowPage* shadows, uint64_t seed) {
  address_ = address;
  pages_ = pages;
  shadows_ = shadows;
  next_token_ = (seed + 1) << 40;
  const size_t mapped = pages / 2;
  if (::mmap(At(Page(0)), mapped * kPageSize, kAll, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
             0) != At(Page(0))) {
    Die("cannot map %zu pages at %#zx: %s", mapped, address, std::strerror(errno));
  }
  for (size_t i = 0; i < mapped; ++i) {
    shadows_[i].mapped = true;
    shadows_[i].access = kAll;
    if (i % 16 == 5) continue;  // never touched
    shadows_[i].token = i % 16 == 11 ? 0 : ++next_token_;
    Fill(Page(i), shadows_[i].token);
  }
}

Arena::Run Arena::Pick(Random& random, size_t most) const {
  const size_t pages = 1 + random.Below(std::min(most, random.OneIn(4) ? most : size_t{4}));
  return {random.Below(pages_ - pages + 1), pages};
}

bool Arena::All(Run run, bool mapped) const {
  return std::all_of(shadows_ + run.first, shadows_ + run.first + run.pages,
                     [&](const ShadowPage& page) { return page.mapped == mapped; });
}

bool Arena::Has(Run run, int access) const {
  return std::all_of(shadows_ + run.first, shadows_ + run.first + run.pages,
                     [&](const ShadowPage& page) { return page.mapped && (page.access & access) == access; });
}

std::string Arena::Check(Run run, const char* who) const {
  for (size_t i = run.first; i < run.first + run.pages; ++i) {
    if (!shadows_[i].mapped || !(shadows_[i].access & PROT_READ)) continue;
    std::string wrong = Compare(shadows_[i], Page(i), who);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

// The kernel takes the page for us, into a pipe.
std::string Arena::CheckThroughKernel(size_t page, const char* who) const {
  if (!Has({page, 1}, PROT_READ)) return "";
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  alignas(kPageSize) uint64_t copy[kPageWords];
  const bool done = ::write(ends[1], Page(page), kPageSize) == static_cast<ssize_t>(kPageSize) &&
                    ::read(ends[0], copy, kPageSize) == static_cast<ssize_t>(kPageSize);
  const int error = errno;
  ::close(ends[0]);
  ::close(ends[1]);
  if (!done) return std::string("write() of a page: ") + std::strerror(error);
  return Compare(shadows_[page], copy, who);
}

void Arena::Allow(Run run) {
  for (size_t i = run.first; i < run.first + run.pages; ++i) {
    if (!shadows_[i].mapped || shadows_[i].access == kAll) continue;
    if (::mprotect(Page(i), kPageSize, kAll) == 0) shadows_[i].access = kAll;
  }
}

void Arena::Zero(Run run, bool mapped) {
  for (size_t i = run.first; i < run.first + run.pages; ++i) {
    const ShadowPage before = shadows_[i];
    shadows_[i] = {};
    shadows_[i].mapped = mapped;
    if (mapped) {
      shadows_[i].access = before.mapped ? before.access : static_cast<uint8_t>(kAll);
      shadows_[i].unforked = before.mapped && before.unforked;
    }
  }
}

bool Arena::IsMapped(size_t page) const {
  unsigned char present;
  return ::mincore(Page(page), kPageSize, &present) == 0;
}

bool Arena::IsOneMapping(Run run) const {
  ProcmapQuery query = {};
  query.size = sizeof query;
  query.query_addr = reinterpret_cast<uintptr_t>(Page(run.first));
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  const bool found = maps >= 0 && ::ioctl(maps, kProcmapQuery, &query) == 0;
  if (maps >= 0) ::close(maps);
  return found ? query.vma_end >= reinterpret_cast<uintptr_t>(Page(run.first + run.pages)) : run.pages == 1;
}

void Arena::Move(Random& random, Run run) {
  if (!All(run, true)) return;
  const Run to = {random.Below(pages_ - run.pages + 1), run.pages};
  if (to.first < run.first + run.pages && run.first < to.first + to.pages) return;
  // Moved in part where userfaultfd is at work, and that is then told to nobody (Linux 6.17).
  if (!IsOneMapping(run)) return;
  const bool keep = random.OneIn(3);
  const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (keep ? MREMAP_DONTUNMAP : 0);
  const bool moved = ::mremap(At(Page(run.first)), run.pages * kPageSize, run.pages * kPageSize, flags,
                              At(Page(to.first))) != MAP_FAILED;
  for (size_t i = 0; i < run.pages; ++i) {
    const size_t source = run.first + i, target = to.first + i;
    if (moved) {
      shadows_[target] = shadows_[source];
      Zero({source, 1}, keep);
      if (keep) {
        shadows_[source].access = shadows_[target].access;
        shadows_[source].unforked = shadows_[target].unforked;
      }
    } else if (!IsMapped(target)) {
      shadows_[target] = {};
    }
  }
}

void Arena::Resize(Random& random, Run run) {
  if (!All(run, true)) return;
  const size_t pages = 1 + random.Below(kMostPages);
  if (run.first + pages > pages_) return;
  // In place: growing works into a hole alone.
  if (pages > run.pages && !All({run.first + run.pages, pages - run.pages}, false)) return;
  if (::mremap(At(Page(run.first)), run.pages * kPageSize, pages * kPageSize, 0) == MAP_FAILED) return;
  if (pages < run.pages) {
    Zero({run.first + pages, run.pages - pages}, false);
    return;
  }
  const ShadowPage last = shadows_[run.first + run.pages - 1];
  Zero({run.first + run.pages, pages - run.pages}, true);
  for (size_t i = run.first + run.pages; i < run.first + pages; ++i) {
    shadows_[i].access = last.access;
    shadows_[i].unforked = last.unforked;
  }
}

std::string Arena::Step(Random& random, const char* who) {
  const Run run = Pick(random, kMostPages);
  const size_t end = run.first + run.pages;
  void* const start = At(Page(run.first));
  const size_t bytes = run.pages * kPageSize;
  switch (random.Below(20)) {
    case 0:
    case 1:
    case 2:
      return Check(run, who);
    case 3:
      return CheckThroughKernel(run.first, who);
    case 4:
    case 5:  // whole pages
      if (!Has(run, kAll)) break;
      for (size_t i = run.first; i < end; ++i) {
        shadows_[i].token = ++next_token_;
        shadows_[i].patched = shadows_[i].freed = false;
        Fill(Page(i), shadows_[i].token);
      }
      break;
    case 6:
    case 7:  // one word: the rest has to come
      for (size_t i = run.first; i < end; ++i) {
        if (!Has({i, 1}, kAll) || shadows_[i].freed) continue;
        shadows_[i].patched = true;
        shadows_[i].patch = random.Next();
        Page(i)[shadows_[i].PatchedWord()] = shadows_[i].patch;
      }
      break;
    case 8:
      if (!All(run, true)) break;
      ::munlock(start, bytes);  // or it would be refused, perhaps half way
      if (::madvise(start, bytes, MADV_DONTNEED) != 0)
        return std::string("MADV_DONTNEED: ") + std::strerror(errno);
      Zero(run, true);
      break;
    case 9:
      if (!All(run, true)) break;
      ::munlock(start, bytes);
      if (::madvise(start, bytes, MADV_FREE) != 0) return std::string("MADV_FREE: ") + std::strerror(errno);
      for (size_t i = run.first; i < end; ++i) shadows_[i].freed = true;
      break;
    case 10:
      if (::munmap(start, bytes) == 0) Zero(run, false);
      break;
    case 11:
      if (!All(run, false)) break;
      if (::mmap(start, bytes, kAll, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == start) {
        Zero(run, true);
      }
      break;
    case 12:  // over whatever is there
      if (::mmap(start, bytes, kAll, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start) {
        Zero(run, false);
        Zero(run, true);
      }
      break;
    case 13:
    case 14:
      Move(random, run);
      break;
    case 15:
      Resize(random, run);
      break;
    case 16: {
      const int access = random.OneIn(2) ? PROT_READ : random.OneIn(2) ? PROT_NONE : kAll;
      if (!All(run, true) || ::mprotect(start, bytes, access) != 0) break;
      for (size_t i = run.first; i < end; ++i) shadows_[i].access = static_cast<uint8_t>(access);
      break;
    }
    case 17:
      Allow(run);
      break;
    case 18: {
      const bool unforked = random.OneIn(2);
      if (!All(run, true) || ::madvise(start, bytes, unforked ? MADV_DONTFORK : MADV_DOFORK) != 0) break;
      for (size_t i = run.first; i < end; ++i) shadows_[i].unforked = unforked;
      break;
    }
    default:
      if (!All(run, true)) break;
      if (random.OneIn(3)) {
        if (::mlock(start, bytes) == 0 && random.OneIn(2)) ::munlock(start, bytes);
      } else if (random.OneIn(2)) {
        ::munlock(start, bytes);
      } else {
        ::madvise(start, bytes, random.OneIn(2) ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
      }
  }
  return "";
}

std::string Arena::CheckSome(Random& random, const char* who) const {
  return Check(Pick(random, kMostPages), who);
}

std::string Arena::CheckAll(const char* who) {
  Allow({0, pages_});
  std::string wrong = Check({0, pages_}, who);
  // A page that is not there must not be: what a hole gets later are zeros.
  for (size_t i = 0; i < pages_ && wrong.empty(); ++i) {
    if (IsMapped(i) != shadows_[i].mapped) {
      wrong = "page " + std::to_string(address_ + i * kPageSize) +
              (shadows_[i].mapped ? " is not mapped" : " is mapped, but was unmapped");
    }
  }
  return wrong;
}

uint64_t Arena::Digest() const {
  uint64_t digest = 0;
  for (size_t i = 0; i < pages_; ++i) {
    digest = digest * 31 + shadows_[i].token + (shadows_[i].mapped ? 1 : 0);
    if (shadows_[i].patched) digest = digest * 31 + shadows_[i].patch;
  }
  return digest;
}

void Arena::BecomeForkedCopy() {
  for (size_t i = 0; i < pages_; ++i) {
    if (shadows_[i].unforked) shadows_[i] = {};
  }
}

}  // namespace rekindle::clone_jobs
