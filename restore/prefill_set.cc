#include "restore/prefill_set.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace rekindle::restore {
namespace {

using store::kPageSize;

struct Copy {
  uint32_t page_in_frame = 0, pages = 0;
  std::byte* to = nullptr;
};
using CopiesByFrame = absl::flat_hash_map<store::FrameId, std::vector<Copy>>;

uint64_t PagesOf(absl::Span<const PrefillSource> sources) {
  uint64_t pages = 0;
  for (const PrefillSource& source : sources) pages += source.pages;
  return pages;
}

std::vector<PrefillPlace> PlacesOf(const std::vector<PrefillSet::Piece>& pieces) {
  return {pieces.begin(), pieces.end()};
}

// Lays the sources out from `memory` on, and returns the end. `copies`, which may be null: what is to be
// copied there.
std::byte* LayOut(std::vector<PrefillSource>& sources, std::byte* memory, CopiesByFrame* copies,
                  std::vector<PrefillSet::Piece>* pieces) {
  std::sort(sources.begin(), sources.end(), [](const PrefillSource& a, const PrefillSource& b) {
    return std::tie(a.pid, a.address) < std::tie(b.pid, b.address);
  });
  for (const PrefillSource& source : sources) {
    PrefillSet::Piece* last = pieces->empty() ? nullptr : &pieces->back();
    if (last != nullptr && last->pid == source.pid &&
        last->address + last->pages * kPageSize == source.address &&
        (source.number == 0 || last->number + last->pages == source.number)) {
      last->pages += source.pages;
    } else {
      pieces->push_back({{source.pid, source.address, source.number, source.pages}, memory});
    }
    // Fresh memory is zeros.
    if (copies != nullptr && !(source.frame == store::FrameId())) {
      (*copies)[source.frame].push_back({source.page_in_frame, source.pages, memory});
    }
    memory += size_t{source.pages} * kPageSize;
  }
  return memory;
}

}  // namespace

uint64_t PrefillSet::BytesOf(absl::Span<const PrefillSource> working_set,
                             absl::Span<const PrefillSource> written) {
  return (PagesOf(working_set) + PagesOf(written)) * kPageSize;
}

absl::StatusOr<std::shared_ptr<PrefillSet>> PrefillSet::Allocate(uint64_t used) {
  const uint64_t bytes = std::max(used, kPageSize);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("getting ", bytes, " bytes of memory for a working set"));
  }
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  return std::shared_ptr<PrefillSet>(new PrefillSet(static_cast<std::byte*>(memory), bytes, used));
}

absl::StatusOr<std::shared_ptr<const PrefillSet>> PrefillSet::Make(const store::ImageReader& image,
                                                                   FrameCache& cache,
                                                                   std::vector<PrefillSource> working_set,
                                                                   std::vector<PrefillSource> written) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<PrefillSet> made, Allocate(BytesOf(working_set, written)));
  CopiesByFrame copies;
  std::byte* end = LayOut(working_set, made->memory_, &copies, &made->working_set_);
  LayOut(written, end, &copies, &made->written_);
  std::vector<store::FrameId> frames;
  for (const auto& [frame, unused] : copies) frames.push_back(frame);
  RK_RETURN_IF_ERROR(cache.GetAll(image, frames, [&](size_t i, FrameCache::Pin pin) {
    for (const Copy& copy : copies.find(frames[i])->second) {
      memcpy(copy.to, pin.bytes().data() + size_t{copy.page_in_frame} * kPageSize,
             size_t{copy.pages} * kPageSize);
    }
    return absl::OkStatus();
  }));
  return made;
}

PrefillNoteHead PrefillSet::Head(const Sha256Digest& image, const Sha256Digest& working_set_digest) const {
  PrefillNoteHead head;
  head.image = image;
  head.working_set = working_set_digest;
  head.recorded = PlacesOf(working_set_);
  head.written = PlacesOf(written_);
  return head;
}

absl::StatusOr<std::shared_ptr<const PrefillSet>> PrefillSet::Load(const store::NoteReader& note,
                                                                   const Sha256Digest& image,
                                                                   const Sha256Digest& working_set_digest,
                                                                   std::vector<PrefillSource> working_set,
                                                                   std::vector<PrefillSource> written) {
  RK_ASSIGN_OR_RETURN(std::shared_ptr<PrefillSet> made, Allocate(BytesOf(working_set, written)));
  std::byte* end = LayOut(working_set, made->memory_, nullptr, &made->working_set_);
  LayOut(written, end, nullptr, &made->written_);
  RK_RETURN_IF_ERROR(
      LoadPrefillNote(note, made->Head(image, working_set_digest), {made->memory_, made->used_}));
  return made;
}

absl::StatusOr<std::vector<std::string>> PrefillSet::Keep(const Sha256Digest& image,
                                                          const Sha256Digest& working_set_digest,
                                                          const std::function<bool()>& go_on) const {
  return EncodePrefillNote(Head(image, working_set_digest), {memory_, used_}, go_on);
}

PrefillSet::Found PrefillSet::Find(pid_t pid, uint64_t number) const {
  // Numbers ascend with addresses.
  auto piece = std::partition_point(working_set_.begin(), working_set_.end(), [&](const Piece& p) {
    return p.pid < pid || (p.pid == pid && p.number + p.pages <= number);
  });
  if (piece == working_set_.end() || piece->pid != pid || piece->number > number) return {};
  const uint64_t before = number - piece->number;
  return {piece->pages - before, piece->bytes + before * kPageSize};
}

PrefillSet::~PrefillSet() { ::munmap(memory_, bytes_); }

}  // namespace rekindle::restore
