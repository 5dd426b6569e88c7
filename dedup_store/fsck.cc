// Proves that a store is whole, or says exactly what is not.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/image_reference.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/status.h"
#include "dedup_store/catalog_rebuild.h"
#include "dedup_store/checked_packs.h"
#include "dedup_store/frame_loader.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/index_file.h"
#include "dedup_store/index_merge.h"
#include "dedup_store/limit_guard.h"
#include "dedup_store/locked_file.h"
#include "dedup_store/maintenance.h"
#include "dedup_store/page_table.h"
#include "dedup_store/store_notes.h"

namespace rekindle::store {

namespace {

constexpr size_t kFramesAtATime = 16;
// A file server that does not answer, a path to the disk that is switched: what the disk refuses it may give
// in a while. A disk that refuses much is not waited for at each place.
constexpr int kMostReads = 3, kMostPauses = 10;
constexpr absl::Duration kPause = absl::Seconds(1);

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Without the pack's frame table, which is most of what is known of it.
struct PackCheck {
  uint64_t file_bytes = 0;
  bool usable = false;
  PackFooter footer{};           // of one that is
  std::vector<bool> bad_frames;  // those with a page that can't be read as it was written; empty: none
  bool bad_manifest = false;     // the manifest or its record is damaged, and no image needs them

  bool IsBad(uint32_t frame) const { return frame < bad_frames.size() && bad_frames[frame]; }
};

class Checker {
 public:
  Checker(const std::shared_ptr<StoreCore>& core, const FsckOptions& options, uint64_t frame_table_bytes)
      : core_(core),
        options_(options),
        checked_packs_([this](uint64_t id) { return ReadPackAgain(id); }, frame_table_bytes) {}

  absl::StatusOr<FsckReport> Run() {
    if (options_.repair) RK_RETURN_IF_ERROR(MakeCatalogReadable());
    std::vector<ImageRecord> images;
    std::vector<PackRecord> packs;
    std::vector<IndexRecord> indexes;
    {
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
      RK_ASSIGN_OR_RETURN(images, txn.Images());
      RK_ASSIGN_OR_RETURN(packs, txn.Packs());
      RK_ASSIGN_OR_RETURN(indexes, txn.Indexes());
    }
    if (!core_->identity().problem.empty()) Problem(core_->identity().problem);
    // What they were can't be known, so a repair leaves them: the message tells how to set them again.
    if (auto limits = ReadLimits(core_->path()); !limits.ok())
      Problem(std::string(limits.status().message()));
    if (!core_->rebuilt_because().empty()) {
      Problem(absl::StrCat(core_->rebuilt_because(), "; it was made again from the packs"));
    }
    for (std::string& problem : core_->catalog().Problems()) Problem(std::move(problem));
    for (const char* name : StoreCore::kHelpFolders) {
      const std::string folder = absl::StrCat(core_->path(), "/", name);
      if (!PathExists(folder))
        Problem(
            absl::StrCat("the folder ", folder, " is missing; nothing is lost: it is made anew with repair"));
    }
    if (options_.repair) core_->MakeHelpFolders();
    for (const ImageRecord& record : images) homes_.insert(record.manifest_pack);
    for (const PackRecord& record : packs) total_bytes_ += record.stored_bytes;
    if (options_.repair) RK_RETURN_IF_ERROR(CheckThatPacksAreThere(packs));
    // What was left out for being cancelled must be taken for nothing else.
    for (const PackRecord& record : packs) {
      RK_RETURN_IF_ERROR(CheckCancelled());
      CheckPack(record);
    }
    for (const IndexRecord& record : indexes) {
      RK_RETURN_IF_ERROR(CheckCancelled());
      CheckIndex(record);
    }
    for (const ImageRecord* record : ByName(images)) {
      RK_RETURN_IF_ERROR(CheckCancelled());
      CheckImage(*record);
    }
    RK_RETURN_IF_ERROR(CheckCancelled());
    RK_ASSIGN_OR_RETURN(std::vector<NoteProblem> bad_notes,
                        CheckNotes(*core_, options_.read_data, unclear_, options_.cancel));
    RK_RETURN_IF_ERROR(CheckCancelled());
    for (NoteProblem& note : bad_notes) Problem(std::move(note.sentence));
    if (options_.repair) {
      if (!unclear_.ok()) {
        return Annotate(unclear_, "nothing was repaired: what is damaged can't be told before this is read");
      }
      RK_RETURN_IF_ERROR(Repair());
    }
    return std::move(report_);
  }

 private:
  bool Cancelled() const { return options_.cancel != nullptr && *options_.cancel; }
  absl::Status CheckCancelled() const {
    if (!Cancelled()) return absl::OkStatus();
    return absl::CancelledError(absl::StrCat("the check of the store was cancelled",
                                             options_.repair ? "; nothing was repaired" : ""));
  }
  void Problem(std::string sentence) { report_.problems.push_back(std::move(sentence)); }
  // A repair drops what is damaged; that must not be what an error kept from being read this time.
  void Note(const absl::Status& status) {
    if (status.ok()) return;
    if (options_.repair && IsRefusedByDisk(status)) refused_.push_back(PlaceOf(status));
    if (IsRefusedByDisk(status) && !options_.read_data) {
      // Nobody asked for the data to be judged.
      unclear_.Update(
          WithMessage(status, absl::StrCat(status.message(),
                                           "; if the disk never gives it again, `rekindle fsck --read "
                                           "--repair` drops the images that need it")));
    } else if (!IsDamage(status)) {
      unclear_.Update(status);
    }
  }

  // Before something is dropped because the disk refuses it.
  template <typename Read>
  auto ReadAgain(const Read& read) const {
    for (int tries = 1;; ++tries) {
      auto result = read();
      if (!options_.repair || !IsRefusedByDisk(StatusOf(result)) || tries == kMostReads || Cancelled() ||
          pauses_left_.fetch_sub(1) <= 0) {
        return result;
      }
      absl::SleepFor(kPause);
    }
  }

  // What was refused while a file server did not answer, or a path to the disk was switched, is not damaged,
  // however long that took.
  absl::Status ReadRefusedAgain() const {
    if (refused_.empty()) return absl::OkStatus();
    constexpr absl::string_view kNothing = "nothing was repaired";
    // A disk that takes something is there: what it refuses from now on it refuses because it must.
    RK_RETURN_IF_ERROR(Annotate(WriteProbe(core_->io(), core_->path()), kNothing));
    std::vector<std::byte> buffer;
    for (const RefusedPlace& place : refused_) {
      auto file = core_->io()->Open(place.path, false);
      if (absl::IsNotFound(file.status())) continue;  // a gc has removed it
      absl::Status read = file.status();
      if (read.ok()) {
        buffer.resize(place.bytes);
        read = (*file)->ReadAt(place.offset, absl::MakeSpan(buffer));
      }
      if (absl::IsDataLoss(read)) continue;
      if (!read.ok()) return Annotate(read, kNothing);
      return absl::UnavailableError(absl::StrCat(
          kNothing, ": ", place.path, " could not be read at ", place.offset,
          " before and can be read now, so the disk, or the way to it, was away for a while. See "
          "to that, and run it again"));
    }
    return absl::OkStatus();
  }

  // It may have been lost since the store was opened; nobody can commit then. Frames that gc has given back
  // read as zeros, which is no damage, and a catalog that was made again does not know them.
  absl::Status MakeCatalogReadable() {
    const absl::Status read = core_->catalog().Read().status();
    bool rebuilt = false;
    if (absl::IsDataLoss(read)) {
      RK_ASSIGN_OR_RETURN(rebuilt, RebuildCatalog(core_->path(), core_->io(), core_->identity().uuid));
    }
    if (rebuilt) {
      Problem(absl::StrCat(read.message(), "; it was made again from the packs"));
    } else if (core_->rebuilt_because().empty()) {
      return absl::OkStatus();
    }
    if (absl::Status marked = RecordDeadFrames(core_); !marked.ok())
      Log(LogLevel::kWarning, absl::StrCat("which pages are needed is not known: ", marked.message()));
    return absl::OkStatus();
  }

  // What is not mounted is not lost.
  absl::Status CheckThatPacksAreThere(const std::vector<PackRecord>& packs) const {
    const absl::Status there = core_->CheckSomePackIsThere(packs);
    if (there.ok()) return there;
    return absl::FailedPreconditionError(
        absl::StrCat("nothing was repaired: ", there.message(),
                     " Where they are gone for good nothing is left of the images: remove the folder ",
                     core_->path(), ", and the next image makes a new store"));
  }

  // Images of one name have most of their packs in common.
  static std::vector<const ImageRecord*> ByName(const std::vector<ImageRecord>& images) {
    std::vector<const ImageRecord*> sorted;
    sorted.reserve(images.size());
    for (const ImageRecord& image : images) sorted.push_back(&image);
    const auto name_of = [](const ImageRecord* image) { return NameOfReference(image->info.reference); };
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const ImageRecord* a, const ImageRecord* b) { return name_of(a) < name_of(b); });
    return sorted;
  }

  // Anew: what another part of this process read earlier proves nothing about the file now.
  absl::StatusOr<std::unique_ptr<Pack>> OpenPack(uint64_t id, uint64_t file_bytes) const {
    RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, core_->io()->Open(core_->pack_path(id), false));
    RK_RETURN_IF_ERROR(file->Lock(LockMode::kShared, true).status());
    RK_ASSIGN_OR_RETURN(uint64_t size, file->Size());
    if (size != file_bytes) {
      return absl::DataLossError(
          absl::StrCat("pack ", file->path(), ": it has ", size, " bytes instead of ", file_bytes));
    }
    std::optional<DeadRecord> dead;
    {
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().ReadNow());
      // Before we had the lock a gc may have removed it, and with it what is known of its frames.
      RK_ASSIGN_OR_RETURN(const std::optional<PackRecord> still, txn.FindPack(id));
      if (!still) return absl::NotFoundError(absl::StrCat("pack ", file->path(), " was removed meanwhile"));
      RK_ASSIGN_OR_RETURN(dead, txn.FindDead(id));
    }
    RK_ASSIGN_OR_RETURN(std::unique_ptr<Pack> pack, Pack::Open(std::move(file), id, core_->identity().uuid));
    if (dead) pack->set_dead(std::move(dead->dead));
    return pack;
  }

  absl::StatusOr<std::unique_ptr<Pack>> ReadPackAgain(uint64_t id) const {
    const uint64_t file_bytes = packs_.at(id).file_bytes;
    absl::StatusOr<std::unique_ptr<Pack>> pack = ReadAgain([&] { return OpenPack(id, file_bytes); });
    if (pack.ok()) (*pack)->Close();
    return pack;
  }

  void CheckPack(const PackRecord& record) {
    auto opened = ReadAgain([&] { return OpenPack(record.id, record.file_bytes); });
    if (!opened.ok()) {
      total_bytes_ -= record.stored_bytes;
      if (Vanished(record.id)) return;
      packs_[record.id];
      Note(opened.status());
      Problem(std::string(opened.status().message()));
      return;
    }
    Pack& pack = **opened;
    PackCheck& check = packs_[record.id];
    check.file_bytes = record.file_bytes;
    check.usable = true;
    check.footer = pack.footer();
    CheckPageTable(pack);
    if (!homes_.count(record.id) && !pack.IsDeadFrame(pack.frames())) {
      for (PackSection section : {kManifest, kImageRecord}) {
        absl::Status status = ReadAgain([&] { return pack.ReadSection(section); }).status();
        Note(status);
        if (status.ok()) continue;
        Problem(absl::StrCat(status.message(), "; no image needs it any more"));
        check.bad_manifest = true;
      }
    }
    report_.chunks_checked += pack.frames();
    if (options_.read_data) ReadPack(pack, check);
    // There may be more packs than descriptors.
    pack.Close();
    checked_packs_.Keep(*std::move(opened));
  }

  // Of a pack that is closed.
  absl::StatusOr<std::string> ReadSection(uint64_t pack, const PackCheck& check, PackSection section) const {
    return ReadAgain([&]() -> absl::StatusOr<std::string> {
      RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, core_->io()->Open(core_->pack_path(pack), false));
      RK_RETURN_IF_ERROR(file->Lock(LockMode::kShared, true).status());
      return Pack::ReadSection(check.footer, section, *file);
    });
  }

  void CheckPageTable(const Pack& pack) {
    if (pack.pages() == 0) return;
    auto table = PageTable::LoadFile(core_.get(), pack.id(), pack.pages());
    if (table.ok()) return;
    // One that was never synced may be missing after a power failure: that is no damage.
    if (!absl::IsNotFound(table.status())) {
      Problem(absl::StrCat(table.status().message(), "; nothing is lost: it is made anew with repair"));
    }
    if (options_.repair) PageTable::Load(core_.get(), pack);
  }

  // A gc that runs beside us may have removed it.
  bool Vanished(uint64_t pack_id) {
    auto txn = core_->catalog().ReadNow();
    if (!txn.ok()) return false;
    auto record = txn->FindPack(pack_id);
    return record.ok() && !*record;
  }

  // What lies between the pieces of a pack, and what gc gave back, is zero: anything else is a disk that
  // writes where it should not.
  void CheckUnused(const Pack& pack) {
    std::vector<std::pair<uint64_t, uint64_t>> used = {{0, sizeof(PackHeader)}};
    bool given_back = false;
    if (auto txn = core_->catalog().Read(); txn.ok()) {
      auto dead = txn->FindDead(pack.id());
      given_back = dead.ok() && *dead && (*dead)->given_back;
    }
    for (uint32_t f = 0; f < pack.frames(); ++f) {
      if (given_back && pack.IsDeadFrame(f)) continue;
      used.push_back({pack.frame(f).offset(), pack.frame(f).offset() + pack.frame(f).stored_bytes});
    }
    const SectionEntry* sections = pack.footer().sections;
    for (uint32_t i = 0; i < kSectionCount; ++i) {
      if (i != kFrames && given_back && pack.IsDeadFrame(pack.frames())) continue;
      used.push_back({sections[i].offset, sections[i].offset + sections[i].bytes});
    }
    auto size = pack.file().Size();
    if (!size.ok()) return;
    used.push_back({*size - sizeof(PackFooter), *size});
    std::vector<std::byte> buffer(size_t{1} << 20);
    uint64_t at = 0;
    for (const auto& [begin, end] : used) {
      for (; at < begin && !Cancelled();) {
        auto piece = absl::MakeSpan(buffer).first(std::min<uint64_t>(buffer.size(), begin - at));
        if (!pack.file().ReadAt(at, piece).ok() ||
            std::any_of(piece.begin(), piece.end(), [](std::byte b) { return b != std::byte{0}; })) {
          Problem(absl::StrFormat(
              "pack %s: there is something between offsets %d and %d, where nothing should be; "
              "no image uses it",
              pack.path(), at, at + piece.size()));
          unused_damage_.push_back({pack.id(), at, at + piece.size()});
        }
        at += piece.size();
      }
      at = std::max(at, end);
    }
  }

  void ReadPack(const Pack& pack, PackCheck& check) {
    CheckUnused(pack);
    std::atomic<uint32_t> next{0};
    absl::Mutex mutex;
    std::vector<uint32_t> damaged;
    auto work = [&] {
      Sha256 sha;
      FrameLoader loader(core_->fingerprinter());
      for (uint32_t begin; !Cancelled() && (begin = next.fetch_add(kFramesAtATime)) < pack.frames();) {
        uint32_t end = std::min<uint32_t>(begin + kFramesAtATime, pack.frames());
        for (uint32_t f = begin; f < end; ++f) {
          if (pack.IsDeadFrame(f)) continue;
          absl::Status status = ReadAgain([&] { return ReadFrame(pack, f, sha, loader); });
          absl::MutexLock lock(&mutex);
          report_.bytes_read += pack.frame(f).stored_bytes;
          if (!status.ok()) {
            check.bad_frames.resize(pack.frames());
            check.bad_frames[f] = true;
            if (absl::IsDataLoss(status)) damaged.push_back(f);
            Note(status);
            Problem(std::string(status.message()));
          }
          if (options_.progress) options_.progress(report_.bytes_read, total_bytes_);
        }
      }
    };
    const size_t threads = std::min<size_t>(core_->threads(), pack.frames() / kFramesAtATime);
    InParallel(std::max<size_t>(threads, 1), [&](size_t) { work(); });
    ForgetFrames(core_.get(), pack, damaged);
  }

  absl::Status ReadFrame(const Pack& pack, uint32_t f, Sha256& sha, FrameLoader& loader) {
    const FrameEntry& frame = pack.frame(f);
    auto here = [&](const absl::Status& status) {
      return Annotate(status, absl::StrFormat("pack %s, chunk at %d", pack.path(), frame.offset()));
    };
    auto stored = loader.Read(pack, f);
    if (!stored.ok()) return here(stored.status());
    Hash128 digest = DigestOfFrame(sha, core_->fingerprinter(), frame.codec(), *stored);
    if (memcmp(&digest, frame.digest, sizeof frame.digest) != 0)
      return here(absl::DataLossError("the data does not fit its digest"));
    auto pages = loader.Decode(pack, f, stored->data());
    return pages.ok() ? absl::OkStatus() : here(pages.status());
  }

  void CheckIndex(const IndexRecord& record) {
    absl::Status status = VerifyIndexFile(core_.get(), record);
    if (status.ok()) return;
    auto txn = core_->catalog().ReadNow();
    if (txn.ok()) {
      auto now = txn->Indexes();
      if (now.ok() && std::none_of(now->begin(), now->end(), [&](auto& r) { return r.id == record.id; }))
        return;
    }
    Problem(absl::StrCat(status.message(), "; nothing is lost: it is made anew with repair"));
    bad_indexes_.insert(record.id);
  }

  void CheckImage(const ImageRecord& record) {
    ++report_.images_checked;
    std::string why = DamageOf(record);
    if (why.empty()) {
      // A lost catalog is made anew from this copy of the record.
      absl::Status copy =
          ReadSection(record.manifest_pack, packs_.at(record.manifest_pack), kImageRecord).status();
      if (copy.ok() || WasRemoved(record)) return;
      Note(copy);
      Problem(absl::StrCat(copy.message(), "; nothing is lost: the catalog has the same"));
      bad_records_.push_back(record);
      return;
    }
    if (WasRemoved(record)) return;
    Problem(absl::StrCat("image ", record.info.reference, " is lost: ", why));
    report_.lost_images.push_back(record.info.reference);
    lost_.push_back(record);
    auto home = packs_.find(record.manifest_pack);
    if (home == packs_.end() || !home->second.usable) return;
    for (PackSection section : {kManifest, kImageRecord}) {
      if (!ReadSection(home->first, home->second, section).ok()) home->second.bad_manifest = true;
    }
  }

  // Meanwhile; then gc may have taken what it needed.
  bool WasRemoved(const ImageRecord& record) {
    auto txn = core_->catalog().ReadNow();
    if (!txn.ok()) return false;
    auto now = txn->FindImage(record.id);
    return now.ok() && !*now;
  }

  std::string DamageOf(const ImageRecord& record) {
    auto home = packs_.find(record.manifest_pack);
    if (home == packs_.end() || !home->second.usable) return "the pack with its manifest can't be used";
    auto encoded = ReadSection(home->first, home->second, kManifest);
    if (!encoded.ok() && !WasRemoved(record)) Note(encoded.status());
    if (!encoded.ok()) return std::string(encoded.status().message());
    auto manifest = Manifest::Decode(*encoded);
    if (!manifest.ok()) return std::string(manifest.status().message());
    std::vector<const PackCheck*> checks;
    std::vector<std::shared_ptr<const Pack>> packs;
    for (uint64_t id : manifest->packs) {
      auto it = packs_.find(id);
      if (it == packs_.end() || !it->second.usable)
        return absl::StrCat("pack ", core_->pack_path(id), " can't be used");
      auto pack = checked_packs_.Get(id);
      if (!pack.ok() && !WasRemoved(record)) Note(pack.status());
      if (!pack.ok()) return std::string(pack.status().message());
      checks.push_back(&it->second);
      packs.push_back(*std::move(pack));
    }
    std::string why;
    auto check_extents = [&](const std::vector<Extent>& extents) {
      for (const Extent& e : extents) {
        if (e.zero() || !why.empty()) continue;
        const PackCheck& check = *checks[e.pack];
        const Pack& pack = *packs[e.pack];
        uint64_t end = e.pack_page + e.pages;
        if (end > pack.pages()) {
          why = "its manifest points outside its packs";
          return;
        }
        for (uint32_t f = pack.FrameOfPage(e.pack_page); f < pack.frames() && pack.frame(f).first_page < end;
             ++f) {
          if (check.IsBad(f) || pack.IsDeadFrame(f)) {
            why = absl::StrFormat("the chunk at %d of pack %s is %s", pack.frame(f).offset(), pack.path(),
                                  check.IsBad(f) ? "damaged" : "gone");
            return;
          }
        }
      }
    };
    for (const PagedObject& object : manifest->objects) check_extents(object.extents);
    check_extents(manifest->blob_stream);
    if (!why.empty()) return why;
    std::string digest = DigestText(
        manifest->ContentDigest([&](uint32_t pack, uint32_t page) { return packs[pack]->IdentityOf(page); }));
    if (digest != record.info.digest) return "its content does not fit its digest";
    return "";
  }

  // The copy of an image's record in its pack, from the catalog.
  absl::Status WriteRecordAgain(ImageRecord record) {
    record.id = 0;  // which it gets only when it is committed
    const std::string encoded = record.Encode();
    const SectionEntry section = packs_.at(record.manifest_pack).footer.sections[kImageRecord];
    if (encoded.size() != section.bytes || Checksum(encoded) != section.checksum) return absl::OkStatus();
    RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                        core_->io()->Open(core_->pack_path(record.manifest_pack), true));
    RK_RETURN_IF_ERROR(
        file->WriteAt(section.offset, {reinterpret_cast<const std::byte*>(encoded.data()), encoded.size()}));
    return file->Sync();
  }

  absl::Status Repair() {
    RK_RETURN_IF_ERROR(core_->CheckWritable());
    RK_RETURN_IF_ERROR(core_->CheckFoldersAreOurs());
    if (!core_->identity().problem.empty())
      RK_RETURN_IF_ERROR(WriteIdentity(core_->path(), core_->identity()));
    RK_RETURN_IF_ERROR(core_->catalog().Heal());
    RK_RETURN_IF_ERROR(ReadRefusedAgain());
    RK_RETURN_IF_ERROR(core_->io()->BeforeCatalogCommit("repair"));
    auto change = [&](Catalog::Txn& txn) -> absl::Status {
      for (const ImageRecord& record : lost_) RK_RETURN_IF_ERROR(txn.DeleteImage(record));
      for (const auto& [id, check] : packs_) {
        if (!check.usable) {
          // Nothing in it can be read: every image that needs it is among the lost.
          RK_RETURN_IF_ERROR(txn.DeletePack(id));
          continue;
        }
        if (!check.bad_manifest && check.bad_frames.empty()) continue;
        RK_ASSIGN_OR_RETURN(const std::optional<PackRecord> still, txn.FindPack(id));
        if (!still) continue;
        // New images must not be pointed to what can't be read.
        RK_ASSIGN_OR_RETURN(std::optional<DeadRecord> dead, txn.FindDead(id));
        DeadRecord record = dead.value_or(DeadRecord());
        record.given_back = false;
        record.dead.resize(check.footer.frames + 1);
        for (uint32_t f = 0; f < check.footer.frames; ++f) record.dead[f] = record.dead[f] || check.IsBad(f);
        if (check.bad_manifest) record.dead[check.footer.frames] = true;
        RK_RETURN_IF_ERROR(txn.PutDead(id, record));
      }
      if (bad_indexes_.empty()) return absl::OkStatus();
      for (uint64_t id : bad_indexes_) RK_RETURN_IF_ERROR(txn.DeleteIndex(id));
      RK_ASSIGN_OR_RETURN(std::vector<PackRecord> packs, txn.Packs());
      for (PackRecord& pack : packs) {
        if (!bad_indexes_.count(pack.index_id)) continue;
        pack.index_id = 0;
        RK_RETURN_IF_ERROR(txn.PutPack(pack));
      }
      return absl::OkStatus();
    };
    RK_RETURN_IF_ERROR(core_->catalog().Update(change));
    for (const ImageRecord& record : bad_records_) RK_RETURN_IF_ERROR(WriteRecordAgain(record));
    packs_.clear();
    for (const UnusedDamage& damage : unused_damage_) {
      auto file = core_->io()->Open(core_->pack_path(damage.pack_id), true);
      if (!file.ok()) continue;  // dropped above
      const std::vector<std::byte> zeros(damage.end - damage.begin);
      RK_RETURN_IF_ERROR((*file)->WriteAt(damage.begin, zeros));
      RK_RETURN_IF_ERROR((*file)->Sync());
    }
    for (uint64_t id : bad_indexes_) RK_RETURN_IF_ERROR(core_->io()->Unlink(core_->index_path(id)));
    RK_RETURN_IF_ERROR(RepairNotes());
    return MergeIndexes(core_.get(), true);
  }

  // Those of the lost images are among them now.
  absl::Status RepairNotes() {
    absl::Status unclear;
    RK_ASSIGN_OR_RETURN(std::vector<NoteProblem> bad_notes, CheckNotes(*core_, options_.read_data, unclear));
    for (const NoteProblem& note : bad_notes) RK_RETURN_IF_ERROR(core_->io()->Unlink(note.path));
    return unclear;
  }

  const std::shared_ptr<StoreCore> core_;
  const FsckOptions& options_;
  CheckedPacks checked_packs_;
  std::map<uint64_t, PackCheck> packs_;
  std::set<uint64_t> homes_;  // packs with the manifest of an image
  std::set<uint64_t> bad_indexes_;
  struct UnusedDamage {
    uint64_t pack_id, begin, end;
  };
  std::vector<UnusedDamage> unused_damage_;
  std::vector<ImageRecord> lost_;
  std::vector<ImageRecord> bad_records_;  // images whose packs have a damaged copy of the record
  std::vector<RefusedPlace> refused_;
  uint64_t total_bytes_ = 0;
  mutable std::atomic<int> pauses_left_{kMostPauses};
  absl::Status unclear_;  // the first error that tells nothing of the store
  FsckReport report_;
};

}  // namespace

absl::StatusOr<FsckReport> CheckStore(const std::shared_ptr<StoreCore>& core, const FsckOptions& options,
                                      uint64_t frame_table_bytes) {
  if (options.repair) RK_RETURN_IF_ERROR(core->CheckWritable());
  return Checker(core, options, frame_table_bytes).Run();
}

}  // namespace rekindle::store
