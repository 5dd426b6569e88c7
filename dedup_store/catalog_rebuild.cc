#include "dedup_store/catalog_rebuild.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/catalog.h"
#include "dedup_store/manifest.h"
#include "dedup_store/pack.h"
#include "dedup_store/prepared.h"

namespace rekindle::store {

namespace {

struct Recovered {
  PackRecord pack;
  std::optional<ImageRecord> image;
};

absl::StatusOr<Recovered> ReadPack(BlockIo* io, const std::string& path, uint64_t id, const StoreUuid& uuid) {
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, io->Open(path, false));
  RK_ASSIGN_OR_RETURN(uint64_t size, file->Size());
  RK_ASSIGN_OR_RETURN(std::unique_ptr<Pack> pack, Pack::Open(std::move(file), id, uuid));
  Recovered result;
  result.pack = {id, size, pack->footer().stored_bytes, pack->frames(), pack->pages(), 0};
  auto manifest = pack->ReadSection(kManifest);
  auto record = pack->ReadSection(kImageRecord);
  for (const auto* section : {&manifest, &record}) {
    if (!section->ok() && !IsDamage(section->status())) return section->status();
  }
  if (!manifest.ok() || !record.ok() || !Manifest::Decode(*manifest).ok())
    return result;  // gc took it, or damaged
  auto image = ImageRecord::Decode(*record);
  if (!image.ok()) return result;
  image->manifest_pack = id;
  image->id = 0;
  result.image = *std::move(image);
  return result;
}

// Of an image that was published its pack says that it is prepared. Nothing else can have got its name before
// that was decided, so what has it and is newer has replaced it.
void DropReplacedPrepared(std::vector<ImageRecord>& images) {
  std::map<std::string, int64_t> newest;
  for (const ImageRecord& image : images) {
    if (IsPrepared(image.info)) continue;
    int64_t& created = newest[image.info.reference];
    created = std::max(created, image.info.created_unix_ns);
  }
  std::erase_if(images, [&](const ImageRecord& image) {
    if (!IsPrepared(image.info)) return false;
    auto taken = newest.find(ComingReference(image.info));
    return taken != newest.end() && taken->second > image.info.created_unix_ns;
  });
}

bool HasNoPageTables(const std::string& index_folder) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(index_folder);
  return names.ok() && std::none_of(names->begin(), names->end(), [](const std::string& name) {
           return IdOfFileName(name, ".pages") != 0;
         });
}

absl::StatusOr<Catalog::Found> ReadPacks(const std::string& folder, const std::string& index_folder,
                                         BlockIo* io, const StoreUuid& uuid) {
  absl::StatusOr<std::vector<std::string>> names = ListDirectory(folder);
  if (absl::IsNotFound(names.status())) names.emplace();
  RK_RETURN_IF_ERROR(names.status());
  std::erase_if(*names, [](const std::string& name) { return IdOfFileName(name, ".pack") == 0; });
  // A catalog that knows none of them is one by which gc removes them all once they are there again. Each has
  // a page table, where that folder was not lost as well.
  if (names->empty() && !HasNoPageTables(index_folder)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "nothing was repaired: the catalog can't be read, and no pack is in ", folder,
        " from which it could be made again. Is its file system mounted, or are they still being copied? "
        "Where they are gone for good nothing is left of the images: empty the folder ",
        index_folder, ", and run it again"));
  }
  Catalog::Found found;
  for (const std::string& name : *names) {
    const uint64_t id = IdOfFileName(name, ".pack");
    auto recovered = ReadPack(io, absl::StrCat(folder, "/", name), id, uuid);
    if (!recovered.ok()) {
      // An error that may be gone the next time must not cost an image.
      if (!IsDamage(recovered.status())) return recovered.status();
      Log(LogLevel::kWarning, absl::StrCat("left out of the new catalog: ", recovered.status().message()));
      continue;
    }
    found.packs.push_back(recovered->pack);
    if (recovered->image) found.images.push_back(*std::move(recovered->image));
  }
  DropReplacedPrepared(found.images);
  // In the order in which they were made: of two with one name the newer stays.
  std::sort(found.images.begin(), found.images.end(), [](const ImageRecord& a, const ImageRecord& b) {
    return a.info.created_unix_ns < b.info.created_unix_ns;
  });
  return found;
}

}  // namespace

absl::StatusOr<bool> RebuildCatalog(const std::string& store_path, BlockIo* io, const StoreUuid& uuid) {
  return Catalog::Rebuild(store_path + "/catalog", io,
                          [&] { return ReadPacks(store_path + "/packs", store_path + "/index", io, uuid); });
}

}  // namespace rekindle::store
