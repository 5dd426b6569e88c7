#include "ckpt/staged_image.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "ckpt/criu_files.h"
#include "criu/image_files.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::ckpt {
namespace {

uint64_t Size(const Pieces& pieces) {
  uint64_t sum = 0;
  for (const auto& piece : pieces) sum += piece.size();
  return sum;
}

// Reads a sequence of pieces from front to back.
class PieceReader {
 public:
  explicit PieceReader(const Pieces& pieces) : pieces_(pieces) {}

  // At most `bytes`, as many as lie in one piece.
  absl::Span<const std::byte> Next(uint64_t bytes) {
    while (index_ < pieces_.size() && offset_ == pieces_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
    if (index_ == pieces_.size()) return {};
    auto span = pieces_[index_].subspan(offset_, bytes);
    offset_ += span.size();
    return span;
  }

 private:
  const Pieces& pieces_;
  size_t index_ = 0, offset_ = 0;
};

uint64_t Size(absl::Span<const AddressRange> ranges) {
  uint64_t sum = 0;
  for (const AddressRange& range : ranges) sum += range.end - range.start;
  return sum;
}

// "pagemap-12.img" -> "mem/12", "pagemap-shmem-7.img" -> "shm/7".
std::string ObjectName(absl::string_view pagemap_file) {
  absl::string_view id = pagemap_file;
  absl::ConsumePrefix(&id, "pagemap-");
  absl::ConsumeSuffix(&id, ".img");
  if (absl::ConsumePrefix(&id, "shmem-")) return absl::StrCat(v1::kSharedMemoryPrefix, id);
  return absl::StrCat(v1::kTaskMemoryPrefix, id);
}

bool Ascending(const criu::Pagemap& pagemap) {
  uint64_t end = 0;
  for (const auto& entry : pagemap.entries) {
    if (entry.address < end) return false;
    end = entry.address + entry.pages * store::kPageSize;
  }
  return true;
}

absl::Status AddByAddress(const Pieces& pieces, absl::Span<const AddressRange> unchanged,
                          const criu::Pagemap& pagemap, const std::string& object, store::ImageWriter& writer,
                          store::ImageInMemory* in_memory) {
  PieceReader reader(pieces);
  auto same = unchanged.begin();
  for (const auto& entry : pagemap.entries) {
    if (!(entry.flags & criu::kPagePresent)) continue;
    uint64_t address = entry.address, end = entry.address + entry.pages * store::kPageSize;
    while (address < end) {
      while (same != unchanged.end() && same->end <= address) ++same;
      uint64_t until = end;
      if (same != unchanged.end()) until = std::min(end, same->start > address ? same->start : same->end);
      if (same != unchanged.end() && same->start <= address) {
        RK_RETURN_IF_ERROR(writer.AddParentPages(object, address, (until - address) / store::kPageSize));
        address = until;
        continue;
      }
      auto span = reader.Next(until - address);
      if (span.empty()) return absl::DataLossError(absl::StrCat(object, " ends before its pagemap does"));
      RK_RETURN_IF_ERROR(writer.AddPages(object, address, span));
      if (in_memory) in_memory->objects[object].push_back({address, span});
      address += span.size();
    }
  }
  return absl::OkStatus();
}

absl::Status AddByOffset(const Pieces& pieces, const std::string& object, store::ImageWriter& writer) {
  uint64_t offset = 0;
  for (const auto& piece : pieces) {
    RK_RETURN_IF_ERROR(writer.AddPages(object, offset, piece));
    offset += piece.size();
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t StagedImage::bytes() const {
  uint64_t sum = 0;
  for (const auto& [name, content] : files) sum += content.size();
  for (const auto& [name, pieces] : pages) sum += Size(pieces);
  return sum;
}

uint64_t StagedImage::unchanged_bytes() const {
  uint64_t sum = 0;
  for (const auto& [name, ranges] : unchanged) sum += Size(ranges);
  return sum;
}

CopiedRange CopiedRange::First(uint64_t count) const {
  return {address, bytes.subspan(0, count), std::min(count, unchanged_bytes)};
}

void CopiedRange::RemoveFirst(uint64_t count) {
  address += count;
  if (bytes.empty()) {
    unchanged_bytes -= count;
  } else {
    bytes.remove_prefix(count);
  }
}

std::string TaskMemoryObject(pid_t task) { return absl::StrCat(v1::kTaskMemoryPrefix, task); }

namespace {

// What of `copied` the dump has not.
std::vector<CopiedRange> Without(const std::vector<CopiedRange>& copied, const criu::Pagemap& dumped) {
  std::vector<CopiedRange> rest;
  auto entry = dumped.entries.begin();
  for (CopiedRange range : copied) {
    while (range.size() > 0) {
      auto end_of = [](const criu::PagemapEntry& e) { return e.address + e.pages * store::kPageSize; };
      while (entry != dumped.entries.end() &&
             (!(entry->flags & criu::kPagePresent) || end_of(*entry) <= range.address)) {
        ++entry;
      }
      const bool last = entry == dumped.entries.end();
      const uint64_t until = last ? ~uint64_t{0} : std::max(entry->address, range.address);
      const CopiedRange free = range.First(until - range.address);
      if (free.size() > 0) rest.push_back(free);
      uint64_t skip = free.size();
      if (skip < range.size()) skip = std::min<uint64_t>(end_of(*entry) - range.address, range.size());
      range.RemoveFirst(skip);
    }
  }
  return rest;
}

absl::Status AddToTask(pid_t pid, const std::vector<CopiedRange>& all, StagedImage* image) {
  std::string name = absl::StrCat("pagemap-", pid, ".img");
  auto file = image->files.find(name);
  if (file == image->files.end()) {
    return absl::DataLossError(
        absl::StrCat("CRIU sent no ", name, " for memory that was copied from that process"));
  }
  RK_ASSIGN_OR_RETURN(criu::Pagemap old, criu::ParsePagemap(file->second));
  if (!Ascending(old)) return absl::UnimplementedError(absl::StrCat(name, " is not in ascending order"));
  const std::vector<CopiedRange> copied = Without(all, old);
  std::string pages_name = absl::StrCat("pages-", old.pages_id, ".img");
  const Pieces old_pieces = std::move(image->pages[pages_name]);
  PieceReader old_pages(old_pieces);
  criu::Pagemap merged;
  merged.pages_id = old.pages_id;
  Pieces pieces;
  auto range = copied.begin();
  uint64_t end = 0;
  auto add = [&](const criu::PagemapEntry& entry) {
    if (entry.address < end) return false;
    end = entry.address + entry.pages * store::kPageSize;
    merged.entries.push_back(entry);
    return true;
  };
  bool disjoint = true;
  auto add_copied_before = [&](uint64_t address) {
    for (; range != copied.end() && range->address < address; ++range) {
      disjoint &= add({range->address, range->size() / store::kPageSize, criu::kPagePresent, 0});
      if (range->bytes.empty()) {
        image->unchanged[pages_name].push_back({range->address, range->address + range->size()});
      } else {
        pieces.push_back(range->bytes);
      }
    }
  };
  for (const criu::PagemapEntry& entry : old.entries) {
    add_copied_before(entry.address);
    disjoint &= add(entry);
    if (!(entry.flags & criu::kPagePresent)) continue;
    for (uint64_t left = entry.pages * store::kPageSize; left > 0;) {
      auto span = old_pages.Next(left);
      if (span.empty()) return absl::DataLossError(absl::StrCat(pages_name, " ends before its pagemap does"));
      pieces.push_back(span);
      left -= span.size();
    }
  }
  add_copied_before(~uint64_t{0});
  if (!disjoint) {
    return absl::DataLossError(absl::StrCat(name, " and the memory copied from that process overlap"));
  }
  file->second = criu::SerializePagemap(merged);
  image->pages[pages_name] = std::move(pieces);
  return absl::OkStatus();
}

}  // namespace

absl::Status AddCopiedMemory(const std::map<pid_t, std::vector<CopiedRange>>& copied, StagedImage* image) {
  for (const auto& [pid, ranges] : copied) {
    if (!ranges.empty()) RK_RETURN_IF_ERROR(AddToTask(pid, ranges, image));
  }
  return absl::OkStatus();
}

absl::Status AddToImage(const StagedImage& staged, store::ImageWriter& writer, v1::JobManifest* manifest,
                        store::ImageInMemory* pages) {
  std::set<std::string> placed;
  for (const auto& [name, content] : staged.files) {
    RK_RETURN_IF_ERROR(writer.AddBlob(absl::StrCat(v1::kCriuFilePrefix, name), content));
    if (!absl::StartsWith(name, "pagemap-")) continue;
    auto pagemap = criu::ParsePagemap(content);
    if (!pagemap.ok()) return Annotate(pagemap.status(), absl::StrCat("reading ", name));
    for (const auto& entry : pagemap->entries) {
      if (entry.flags & criu::kPageInParent) {
        return absl::UnimplementedError(
            absl::StrCat("reading ", name,
                         ": it is an incremental image that needs its parent folder; dump without "
                         "--prev-images-dir, Rekindle finds what is equal by itself"));
      }
    }
    std::string file = absl::StrCat("pages-", pagemap->pages_id, ".img");
    auto found = staged.pages.find(file);
    auto same = staged.unchanged.find(file);
    const absl::Span<const AddressRange> unchanged =
        same == staged.unchanged.end() ? absl::Span<const AddressRange>() : same->second;
    uint64_t expected = pagemap->present_pages() * store::kPageSize;
    uint64_t size = Size(unchanged) + (found == staged.pages.end() ? 0 : Size(found->second));
    if (size != expected) {
      return absl::DataLossError(absl::StrCat("reading ", name, ": it speaks of ", expected,
                                              " bytes of pages and ", file, " has ", size));
    }
    if (expected == 0) continue;
    if (!placed.insert(file).second) {
      return absl::UnimplementedError(
          absl::StrCat("reading ", name, ": it shares ", file, " with another pagemap"));
    }
    v1::PagesObject* object = manifest->add_pages();
    object->set_pages_id(pagemap->pages_id);
    object->set_pagemap_file(name);
    if (Ascending(*pagemap)) {
      object->set_object(ObjectName(name));
      RK_RETURN_IF_ERROR(AddByAddress(found->second, unchanged, *pagemap, object->object(), writer, pages));
    } else {
      object->set_object(absl::StrCat(v1::kRawPagesPrefix, pagemap->pages_id));
      RK_RETURN_IF_ERROR(AddByOffset(found->second, object->object(), writer));
    }
  }
  for (const auto& [name, pieces] : staged.pages) {
    if (placed.contains(name) || Size(pieces) == 0) continue;
    return absl::DataLossError(absl::StrCat("reading ", name, ": no pagemap speaks of it"));
  }
  return absl::OkStatus();
}

void RecordNeededFiles(const StagedImage& staged, v1::JobManifest* manifest) {
  const absl::string_view files = ContentOf(staged.files, "files.img");
  if (files.empty()) return;
  const auto regular = criu::ParseRegularFiles(files, ContentOf(staged.files, "remap-fpath.img"));
  if (!regular.ok()) return;
  std::set<uint64_t> mapped;  // numbers of files
  for (const auto& [name, content] : staged.files) {
    if (!absl::StartsWith(name, "mm-")) continue;
    const auto areas = criu::ParseMm(content);
    if (!areas.ok()) continue;
    for (const criu::Vma& area : *areas) {
      if (area.of_file()) mapped.insert(area.shmid);
    }
  }
  for (const criu::RegularFile& file : *regular) {
    if (file.ghost) continue;
    v1::NeededFile* needed = manifest->add_files();
    needed->set_path(file.path);
    needed->set_size(file.size);
    needed->set_has_size(file.has_size);
    needed->set_written(file.written);
    needed->set_mapped(mapped.contains(file.id));
  }
}

}  // namespace rekindle::ckpt
