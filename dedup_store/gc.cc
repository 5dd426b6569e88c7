// Frees what no image reaches.
//
// What makes it safe beside captures and restores: whoever reads a pack or refers new images to it holds a
// shared lock on its file (StoreCore::OpenPack); gc touches a pack only under the exclusive lock, and looks
// for images that were committed since its marking, on whichever node, after it has that lock. A pack in use
// is left to the next gc. Each step is complete in itself: killed anywhere, the next gc finishes the work.

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "dedup_store/image_reader.h"
#include "dedup_store/maintenance.h"
#include "dedup_store/page_runs.h"
#include "dedup_store/store_identity.h"
#include "dedup_store/store_notes.h"

namespace rekindle::store {

namespace {

struct PackUse {
  PageRuns pages;
  bool manifest = false;
};

// Each keeps a descriptor open until then.
constexpr size_t kRemovedAtOnce = 64;
// Packs of which parts are freed are kept from those who want to read them meanwhile: few at once.
constexpr size_t kPunchedAtOnce = 8;
// What was given back is noted later, when nobody waits.
constexpr size_t kNotedAtOnce = 64;

uint64_t WholeBlocks(uint64_t begin, uint64_t end) {
  uint64_t from = (begin + 4095) / 4096, to = end / 4096;
  return to > from ? (to - from) * 4096 : 0;
}

// Is this the name of a file of the store's own folder in the making?
bool IsTemporary(absl::string_view name) {
  static constexpr absl::string_view kMark = ".tmp-";  // as WriteFileAtomically has it
  static constexpr absl::string_view kFiles[] = {"FORMAT", "LIMITS", "SCRUB", "hot-frames"};
  return absl::StartsWith(name, kFirstIdentityMark) ||
         std::any_of(std::begin(kFiles), std::end(kFiles), [&](absl::string_view file) {
           return absl::StartsWith(name, absl::StrCat(file, kMark));
         });
}

// And one of the folder tmp/? Others are not the store's.
bool IsInTheMaking(absl::string_view name) {
  if (IdOfFileName(name, ".pack") != 0 || IdOfFileName(name, ".idx") != 0) return true;
  const size_t dot = name.rfind('.');
  if (dot == absl::string_view::npos) return false;
  const absl::string_view what = name.substr(0, dot), number = name.substr(dot + 1);
  if (number.empty() || number.size() > 16 ||
      !std::all_of(number.begin(), number.end(), absl::ascii_isxdigit))
    return false;
  return what == "probe" || IdOfFileName(what, ".pack") != 0 || IdOfFileName(what, ".idx") != 0 ||
         IdOfFileName(what, ".pages") != 0 || IsNoteName(what);
}

class Collector {
 public:
  Collector(const std::shared_ptr<StoreCore>& core, const GcOptions& options)
      : core_(core), dry_run_(options.dry_run), cancel_(options.cancel) {}

  absl::StatusOr<GcReport> Run() {
    RK_ASSIGN_OR_RETURN(std::vector<PackRecord> packs, Packs());
    RK_RETURN_IF_ERROR(MarkNewImages());
    RK_RETURN_IF_ERROR(LeaveOutNeeded(packs));
    // Whole packs first: a file system may need room to punch a hole (btrfs does), but none to remove a file.
    std::stable_partition(packs.begin(), packs.end(), [&](const PackRecord& p) { return !use_.count(p.id); });
    {
      absl::MutexLock no_scrub(&core_->pack_turns());
      for (const PackRecord& pack : packs) {
        RK_RETURN_IF_ERROR(CheckCancelled());
        if (use_.count(pack.id) > 0 || doomed_.size() >= kRemovedAtOnce) RK_RETURN_IF_ERROR(RemoveDoomed());
        RK_RETURN_IF_ERROR(Sweep(pack));
        if (partly_dead_.size() >= kPunchedAtOnce) RK_RETURN_IF_ERROR(PunchDead());
      }
      RK_RETURN_IF_ERROR(RemoveDoomed());
      RK_RETURN_IF_ERROR(PunchDead());
    }
    RK_RETURN_IF_ERROR(NoteGivenBack());
    RK_RETURN_IF_ERROR(RemoveLeftovers(core_->packs_folder()));
    RK_RETURN_IF_ERROR(RemoveOrphanedTables());
    RK_RETURN_IF_ERROR(RemoveLeftovers(core_->index_folder()));
    RK_RETURN_IF_ERROR(RemoveOrphanedNotes());
    RK_RETURN_IF_ERROR(RemoveLeftovers(core_->path() + "/tmp"));
    RK_RETURN_IF_ERROR(RemoveLeftovers(core_->path()));
    if (report_.bytes_freed == 0) RK_RETURN_IF_ERROR(no_room_);
    if (!failed_.ok()) return Annotate(failed_, "gc did all else, but");
    return report_;
  }

  absl::Status RecordDead() {
    RK_ASSIGN_OR_RETURN(const std::vector<PackRecord> packs, Packs());
    RK_RETURN_IF_ERROR(MarkNewImages());
    for (const PackRecord& record : packs) {
      auto file = core_->io()->Open(core_->pack_path(record.id), true);
      if (!file.ok()) continue;  // fsck tells of it
      RK_ASSIGN_OR_RETURN(const bool locked, (*file)->Lock(LockMode::kExclusive, false));
      if (!locked) continue;
      RK_RETURN_IF_ERROR(MarkNewImages());
      auto pack = Pack::Open(*std::move(file), record.id, core_->identity().uuid);
      if (!pack.ok()) continue;
      RK_ASSIGN_OR_RETURN(const std::optional<DeadRecord> known, KnownDead(record.id));
      bool news = false;
      const DeadRecord dead = FindDead(**pack, use_[record.id], known, &news);
      if (news) RK_RETURN_IF_ERROR(SetDead(record.id, dead));
    }
    return absl::OkStatus();
  }

 private:
  struct Doomed {
    uint64_t id = 0;
    std::unique_ptr<BlockFile> file;  // locked
  };
  struct PartlyDead {
    std::unique_ptr<Pack> pack;  // locked
    DeadRecord dead;
    bool news = false;  // the catalog does not say so yet
    std::vector<std::pair<uint64_t, uint64_t>> holes;
  };

  absl::Status CheckCancelled() const {
    if (cancel_ == nullptr || !*cancel_) return absl::OkStatus();
    return absl::CancelledError("gc was cancelled: what it has freed is free, the next gc does the rest");
  }
  absl::StatusOr<std::vector<PackRecord>> Packs() const {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
    return txn.Packs();
  }
  absl::StatusOr<std::optional<DeadRecord>> KnownDead(uint64_t pack) const {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
    return txn.FindDead(pack);
  }

  // Marks what the images reach that were committed since the last call.
  absl::Status MarkNewImages() {
    std::vector<ImageRecordPtr> images;
    {
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().ReadNow());
      RK_ASSIGN_OR_RETURN(images, txn.ImagesAfter(last_image_));
    }
    const absl::Status marked = ReadManifests(
        *core_, images, cancel_, [this](const ImageRecord& image, const absl::StatusOr<Manifest>& manifest) {
          return Mark(image, manifest);
        });
    // Some file systems say so of what they could not read, too.
    if (absl::IsCancelled(marked)) RK_RETURN_IF_ERROR(CheckCancelled());
    return marked;
  }

  absl::Status Mark(const ImageRecord& image, const absl::StatusOr<Manifest>& manifest) {
    last_image_ = std::max(last_image_, image.id);
    if (!manifest.ok()) {
      // Removed between the two steps: nothing to mark.
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().ReadNow());
      RK_ASSIGN_OR_RETURN(std::optional<ImageRecord> still, txn.FindImage(image.id));
      if (!still) return absl::OkStatus();
      return Annotate(manifest.status(),
                      absl::StrCat("gc must know what image ", image.info.reference,
                                   " reaches, and can't (`rekindle fsck` tells what can be done)"));
    }
    use_[image.manifest_pack].manifest = true;
    auto mark = [&](const std::vector<Extent>& extents) {
      for (const Extent& e : extents) {
        if (e.zero()) continue;
        use_[manifest->packs[e.pack]].pages.Add(e.pack_page, e.pack_page + static_cast<uint32_t>(e.pages));
      }
    };
    for (const PagedObject& object : manifest->objects) mark(object.extents);
    mark(manifest->blob_stream);
    return absl::OkStatus();
  }

  // Most packs have nothing to give: all that is in them was marked, and none of it was ever found dead. They
  // are not even opened. What has lost its last image since the marking the next gc finds.
  absl::Status LeaveOutNeeded(std::vector<PackRecord>& packs) {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
    absl::Status failed;
    std::erase_if(packs, [&](const PackRecord& record) {
      const auto use = use_.find(record.id);
      if (use == use_.end() || !use->second.manifest) return false;
      if (record.pages > 0) {
        const std::vector<PageRuns::Run>& runs = use->second.pages.Merged();
        if (runs.size() != 1 || runs[0].first > 0 || runs[0].end < record.pages) return false;
      }
      const absl::StatusOr<std::optional<DeadRecord>> dead = txn.FindDead(record.id);
      failed.Update(dead.status());
      return dead.ok() && !dead->has_value();
    });
    return failed;
  }

  absl::Status Sweep(const PackRecord& record) {
    auto file = core_->io()->Open(core_->pack_path(record.id), !dry_run_);
    if (absl::IsNotFound(file.status())) return absl::OkStatus();
    if (!file.ok()) return PassOver(file.status(), failed_);
    if (!dry_run_) {
      RK_ASSIGN_OR_RETURN(bool locked, (*file)->Lock(LockMode::kExclusive, false));
      if (!locked) {
        ++report_.packs_in_use;
        return absl::OkStatus();
      }
      RK_RETURN_IF_ERROR(MarkNewImages());
    }
    std::optional<DeadRecord> known;
    {
      RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().Read());
      RK_ASSIGN_OR_RETURN(std::optional<PackRecord> now, txn.FindPack(record.id));
      if (!now) return absl::OkStatus();
      RK_ASSIGN_OR_RETURN(known, txn.FindDead(record.id));
    }
    auto use = use_.find(record.id);
    if (use == use_.end()) {
      doomed_.push_back({record.id, *std::move(file)});
      return absl::OkStatus();
    }

    auto opened = Pack::Open(*std::move(file), record.id, core_->identity().uuid);
    if (!opened.ok()) {
      Log(LogLevel::kWarning,
          absl::StrCat(opened.status().message(), "; gc leaves it, `rekindle fsck` tells more"));
      return absl::OkStatus();
    }
    FindHoles(*std::move(opened), use->second, known);
    return absl::OkStatus();
  }

  // After an error of one pack's file, which must not keep gc from the others. What is marked dead stays so,
  // and the next gc tries again.
  static absl::Status PassOver(const absl::Status& status, absl::Status& first) {
    Log(LogLevel::kWarning, absl::StrCat(status.message(), "; gc goes on with others"));
    first.Update(status);
    return absl::OkStatus();
  }

  // Their locks were got before it was found that nobody needs them, and are held until they are gone. In one
  // transaction, which costs as much for many as for one.
  absl::Status RemoveDoomed() {
    const std::vector<Doomed> doomed = std::exchange(doomed_, {});
    if (doomed.empty()) return absl::OkStatus();
    std::vector<uint64_t> bytes;
    for (const Doomed& pack : doomed) {
      RK_ASSIGN_OR_RETURN(const uint64_t allocated, pack.file->AllocatedBytes());
      bytes.push_back(allocated);
    }
    const auto remove = [&doomed](Catalog::Txn& txn) -> absl::Status {
      for (const Doomed& pack : doomed) RK_RETURN_IF_ERROR(txn.DeletePack(pack.id));
      return absl::OkStatus();
    };
    if (!dry_run_) {
      RK_RETURN_IF_ERROR(core_->io()->BeforeCatalogCommit("removal of packs"));
      RK_RETURN_IF_ERROR(core_->catalog().Update(remove));
    }
    for (size_t i = 0; i < doomed.size(); ++i) {
      ++report_.packs_removed;
      report_.bytes_freed += bytes[i];
      if (dry_run_) continue;
      RK_RETURN_IF_ERROR(core_->io()->Unlink(core_->page_table_path(doomed[i].id)));
      RK_RETURN_IF_ERROR(core_->io()->Unlink(core_->pack_path(doomed[i].id)));
    }
    return absl::OkStatus();
  }

  // What is not reached, and what was found so before. `*news`: some of it was not.
  static DeadRecord FindDead(const Pack& pack, PackUse& use, const std::optional<DeadRecord>& known,
                             bool* news) {
    const uint32_t frames = pack.frames();
    std::vector<bool> live(frames + 1, false);
    live[frames] = use.manifest;
    for (const PageRuns::Run& run : use.pages.Merged()) {
      if (run.first >= pack.pages()) continue;
      for (uint32_t f = pack.FrameOfPage(run.first); f < frames && pack.frame(f).first_page < run.end; ++f) {
        live[f] = true;
      }
    }
    DeadRecord dead;
    dead.dead.resize(frames + 1);
    *news = false;
    for (uint32_t f = 0; f <= frames; ++f) {
      bool before = known && f < known->dead.size() && known->dead[f];
      dead.dead[f] = before || !live[f];
      *news |= dead.dead[f] != before;
    }
    return dead;
  }

  void FindHoles(std::unique_ptr<Pack> opened, PackUse& use, const std::optional<DeadRecord>& known) {
    const Pack& pack = *opened;
    const uint32_t frames = pack.frames();
    bool news = false;
    DeadRecord dead = FindDead(pack, use, known, &news);
    if (!news && (!known || known->given_back)) return;

    std::vector<std::pair<uint64_t, uint64_t>> holes;
    auto add_hole = [&](uint64_t begin, uint64_t end) {
      if (!holes.empty() && holes.back().second == begin) {
        holes.back().second = end;
      } else {
        holes.push_back({begin, end});
      }
    };
    for (uint32_t f = 0; f < frames; ++f) {
      const FrameEntry& frame = pack.frame(f);
      if (dead.dead[f]) add_hole(frame.offset(), frame.offset() + frame.stored_bytes);
    }
    if (dead.dead[frames]) {
      const SectionEntry& manifest = pack.footer().sections[kManifest];
      const SectionEntry& record = pack.footer().sections[kImageRecord];
      add_hole(manifest.offset, manifest.offset + manifest.bytes);
      add_hole(record.offset, record.offset + record.bytes);
    }
    if (dry_run_) {
      ++report_.packs_rewritten;
      for (const auto& [begin, end] : holes) report_.bytes_freed += WholeBlocks(begin, end);
      return;
    }
    partly_dead_.push_back({std::move(opened), std::move(dead), news, std::move(holes)});
  }

  // All of them are locked, and so may be noted in one transaction, before anything of them is gone.
  absl::Status PunchDead() {
    std::vector<PartlyDead> packs = std::exchange(partly_dead_, {});
    if (std::any_of(packs.begin(), packs.end(), [](const PartlyDead& each) { return each.news; })) {
      RK_RETURN_IF_ERROR(core_->io()->BeforeCatalogCommit("dead frames"));
      const absl::Status noted = core_->catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
        for (const PartlyDead& each : packs) {
          if (each.news) RK_RETURN_IF_ERROR(txn.PutDead(each.pack->id(), each.dead));
        }
        return absl::OkStatus();
      });
      // Others may give back room enough for that.
      if (absl::IsResourceExhausted(noted)) return PassOver(noted, no_room_);
      RK_RETURN_IF_ERROR(noted);
    }
    for (PartlyDead& each : packs) {
      const absl::Status punched = PunchDead(each);
      each.pack.reset();
      RK_RETURN_IF_ERROR(absl::IsResourceExhausted(punched) ? PassOver(punched, no_room_) : punched);
    }
    return given_back_.size() >= kNotedAtOnce ? NoteGivenBack() : absl::OkStatus();
  }

  absl::Status PunchDead(PartlyDead& each) {
    const absl::StatusOr<uint64_t> freed = Punch(each.pack->mutable_file(), each.holes);
    if (absl::IsUnimplemented(freed.status())) {
      // Nothing is wrong with that, and nobody can do anything about it: a pack goes once all of it is dead.
      if (!std::exchange(cannot_punch_, true)) {
        Log(LogLevel::kWarning, absl::StrCat("the file system of ", core_->packs_folder(),
                                             " can't free parts of a file: what images no longer need comes "
                                             "back only once nothing of its pack is needed"));
      }
      return absl::OkStatus();
    }
    if (absl::IsResourceExhausted(freed.status()) || absl::IsCancelled(freed.status())) return freed.status();
    if (!freed.ok()) return PassOver(freed.status(), failed_);
    ++report_.packs_rewritten;
    report_.bytes_freed += *freed;
    given_back_.emplace_back(each.pack->id(), std::move(each.dead));
    return absl::OkStatus();
  }

  // Needs no lock: where more was found dead meanwhile, that is not given back yet, and nothing is noted.
  absl::Status NoteGivenBack() {
    const std::vector<std::pair<uint64_t, DeadRecord>> packs = std::exchange(given_back_, {});
    if (packs.empty()) return absl::OkStatus();
    RK_RETURN_IF_ERROR(core_->io()->BeforeCatalogCommit("dead frames"));
    const absl::Status noted = core_->catalog().Update([&](Catalog::Txn& txn) -> absl::Status {
      for (const auto& [id, dead] : packs) {
        const std::shared_ptr<const DeadRecord> now = txn.SharedDead(id);
        if (now == nullptr || now->dead != dead.dead) continue;
        RK_RETURN_IF_ERROR(txn.PutDead(id, {true, dead.dead}));
      }
      return absl::OkStatus();
    });
    return absl::IsResourceExhausted(noted) ? PassOver(noted, no_room_) : noted;
  }

  absl::StatusOr<uint64_t> Punch(BlockFile& file,
                                 const std::vector<std::pair<uint64_t, uint64_t>>& holes) const {
    RK_ASSIGN_OR_RETURN(const uint64_t before, file.AllocatedBytes());
    for (const auto& [begin, end] : holes) {
      RK_RETURN_IF_ERROR(CheckCancelled());
      if (begin < end) RK_RETURN_IF_ERROR(file.PunchHole(begin, end - begin));
    }
    RK_RETURN_IF_ERROR(file.Sync());
    RK_ASSIGN_OR_RETURN(const uint64_t after, file.AllocatedBytes());
    return before > after ? before - after : 0;
  }

  absl::Status SetDead(uint64_t pack_id, const DeadRecord& dead) {
    RK_RETURN_IF_ERROR(core_->io()->BeforeCatalogCommit("dead frames"));
    return core_->catalog().Update([&](Catalog::Txn& txn) { return txn.PutDead(pack_id, dead); });
  }

  // None of a folder that is not there.
  static absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
    absl::StatusOr<std::vector<std::string>> names = ListDirectory(folder);
    if (absl::IsNotFound(names.status())) return std::vector<std::string>();
    return names;
  }

  // Files that the catalog does not know, and whose writer does not hold its lock any more.
  absl::Status RemoveLeftovers(const std::string& folder) {
    RK_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
    RK_ASSIGN_OR_RETURN(Catalog::Txn then, core_->catalog().Read());
    for (const std::string& name : names) {
      RK_RETURN_IF_ERROR(CheckCancelled());
      const bool temporary = (folder == core_->path() + "/tmp" && IsInTheMaking(name)) ||
                             (folder == core_->path() && IsTemporary(name));
      uint64_t pack_id = IdOfFileName(name, ".pack");
      uint64_t index_id = IdOfFileName(name, ".idx");
      if (pack_id == 0 && index_id == 0 && !temporary) continue;
      RK_ASSIGN_OR_RETURN(bool known, IsIn(then, pack_id, index_id));
      if (known && !temporary) continue;
      const std::string path = absl::StrCat(folder, "/", name);
      // NFS gives an exclusive lock only to who may write the file.
      auto file = core_->io()->Open(path, !dry_run_);
      if (absl::IsNotFound(file.status())) continue;
      if (struct stat info; !file.ok() && ::lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
        RK_RETURN_IF_ERROR(PassOver(file.status(), failed_));
        continue;
      }
      RK_RETURN_IF_ERROR(file.status());
      const LockMode mode = dry_run_ ? LockMode::kShared : LockMode::kExclusive;
      RK_ASSIGN_OR_RETURN(bool locked, (*file)->Lock(mode, false));
      if (!locked) continue;
      // Its writer may have committed it just before.
      RK_ASSIGN_OR_RETURN(known, InCatalog(pack_id, index_id));
      if (known && !temporary) continue;
      RK_ASSIGN_OR_RETURN(uint64_t bytes, (*file)->AllocatedBytes());
      ++report_.leftovers_removed;
      report_.bytes_freed += bytes;
      if (!dry_run_) RK_RETURN_IF_ERROR(core_->io()->Unlink(path));
    }
    return absl::OkStatus();
  }

  // Page tables of packs that are gone. A writer makes the pack first, so one without is nobody's.
  absl::Status RemoveOrphanedTables() {
    RK_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(core_->index_folder()));
    for (const std::string& name : names) {
      uint64_t pack_id = IdOfFileName(name, ".pages");
      if (pack_id == 0 || PathExists(core_->pack_path(pack_id))) continue;
      ++report_.leftovers_removed;
      if (!dry_run_) RK_RETURN_IF_ERROR(core_->io()->Unlink(core_->page_table_path(pack_id)));
    }
    return absl::OkStatus();
  }

  absl::Status RemoveOrphanedNotes() {
    RK_ASSIGN_OR_RETURN(std::vector<NoteProblem> orphans, OrphanedNotes(*core_));
    for (const NoteProblem& orphan : orphans) {
      ++report_.leftovers_removed;
      if (!dry_run_) RK_RETURN_IF_ERROR(core_->io()->Unlink(orphan.path));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> InCatalog(uint64_t pack_id, uint64_t index_id) {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core_->catalog().ReadNow());
    return IsIn(txn, pack_id, index_id);
  }
  static absl::StatusOr<bool> IsIn(Catalog::Txn& txn, uint64_t pack_id, uint64_t index_id) {
    if (pack_id == 0 && index_id == 0) return false;
    if (pack_id != 0) {
      RK_ASSIGN_OR_RETURN(std::optional<PackRecord> pack, txn.FindPack(pack_id));
      return pack.has_value();
    }
    RK_ASSIGN_OR_RETURN(std::vector<IndexRecord> indexes, txn.Indexes());
    return std::any_of(indexes.begin(), indexes.end(),
                       [&](const IndexRecord& r) { return r.id == index_id; });
  }

  const std::shared_ptr<StoreCore> core_;
  const bool dry_run_;
  const std::atomic<bool>* const cancel_;
  uint64_t last_image_ = 0;
  std::map<uint64_t, PackUse> use_;
  std::vector<Doomed> doomed_;
  std::vector<PartlyDead> partly_dead_;
  std::vector<std::pair<uint64_t, DeadRecord>> given_back_;  // not noted yet
  absl::Status no_room_;                                     // the first hole that could not be made
  absl::Status failed_;                                      // the first error of a pack's file
  bool cannot_punch_ = false;
  GcReport report_;
};

}  // namespace

absl::StatusOr<GcReport> CollectGarbage(const std::shared_ptr<StoreCore>& core, const GcOptions& options) {
  if (!options.dry_run) {
    RK_RETURN_IF_ERROR(core->CheckWritable());
    core->MakeHelpFolders();
    RK_RETURN_IF_ERROR(core->CheckFoldersAreOurs());
  }
  return Collector(core, options).Run();
}

absl::Status RecordDeadFrames(const std::shared_ptr<StoreCore>& core) {
  RK_RETURN_IF_ERROR(core->CheckWritable());
  return Collector(core, GcOptions()).RecordDead();
}

}  // namespace rekindle::store
