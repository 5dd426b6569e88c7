#include "dedup_store/store_notes.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "dedup_store/coding.h"
#include "dedup_store/hashing.h"
#include "dedup_store/limit_guard.h"
#include "dedup_store/locked_file.h"
#include "dedup_store/pack.h"
#include "dedup_store/store_use.h"

namespace rekindle::store {

namespace {

// docs/store-format.md describes it. Kind and content follow.
struct NoteHeader {
  char magic[8];
  uint32_t version;
  uint32_t kind_bytes;
  uint8_t store_uuid[16];
  uint8_t image_digest[32];
  uint64_t bytes;
  Hash128 checksum;  // of all before it, and of all that follows the header
};
static_assert(sizeof(NoteHeader) == 88);
constexpr char kNoteMagic[8] = {'R', 'K', 'N', 'O', 'T', 'E', '\r', '\n'};
constexpr uint32_t kNoteVersion = 1;
constexpr size_t kDigestHexDigits = 64;

absl::Status CheckKind(absl::string_view kind) {
  if (std::find(std::begin(kNoteKinds), std::end(kNoteKinds), kind) != std::end(kNoteKinds)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a store keeps no notes of kind '", kind, "'"));
}

// The digits of "sha256:<64 hex>".
absl::StatusOr<std::string> HexOf(absl::string_view digest) {
  absl::string_view hex = digest;
  if (!absl::ConsumePrefix(&hex, "sha256:") || hex.size() != kDigestHexDigits ||
      hex.find_first_not_of("0123456789abcdef") != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", digest, "' is not an image's whole digest"));
  }
  return std::string(hex);
}

std::string FileName(absl::string_view hex, absl::string_view kind) { return absl::StrCat(hex, ".", kind); }

uint64_t MostBytes(absl::string_view kind) {
  return kind == kWorkingSetPagesNote ? kMaxPagesNoteBytes : kMaxNoteBytes;
}

// All but the checksum.
NoteHeader HeaderOf(const StoreCore& core, absl::string_view hex, absl::string_view kind, uint64_t bytes) {
  NoteHeader header{};
  memcpy(header.magic, kNoteMagic, sizeof header.magic);
  header.version = kNoteVersion;
  header.kind_bytes = static_cast<uint32_t>(kind.size());
  memcpy(header.store_uuid, core.identity().uuid.data(), sizeof header.store_uuid);
  memcpy(header.image_digest, BytesOfHex(hex).data(), sizeof header.image_digest);
  header.bytes = bytes;
  return header;
}

constexpr size_t kCheckedBytes = offsetof(NoteHeader, checksum);

void BeginChecksum(const NoteHeader& header, absl::string_view kind, RunningChecksum* sum) {
  sum->Update(&header, kCheckedBytes);
  sum->Update(kind);
}

// A note whose beginning is as it was written, and whose length is right.
class OpenedNote : public NoteReader {
 public:
  // DataLoss: it is not.
  static absl::StatusOr<std::unique_ptr<OpenedNote>> Open(StoreCore& core, absl::string_view hex,
                                                          absl::string_view kind) {
    const std::string path = absl::StrCat(NotesFolder(core), "/", FileName(hex, kind));
    RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, core.io()->Open(path, false));
    RK_ASSIGN_OR_RETURN(uint64_t size, file->Size());
    std::unique_ptr<OpenedNote> note(new OpenedNote(std::move(file), std::string(kind)));
    const uint64_t prefix = note->prefix();
    if (size < prefix || size > prefix + MostBytes(kind)) return note->Damaged();
    std::string begin(prefix, '\0');
    RK_RETURN_IF_ERROR(note->file_->ReadAt(0, {reinterpret_cast<std::byte*>(begin.data()), begin.size()}));
    NoteHeader& header = note->header_;
    memcpy(&header, begin.data(), sizeof header);
    if (memcmp(header.magic, kNoteMagic, sizeof header.magic) == 0 && header.version > kNoteVersion) {
      return absl::FailedPreconditionError(absl::StrCat("the note ", path, " has version ", header.version,
                                                        ", newer than this Rekindle knows"));
    }
    // Whatever of it was changed, it is not the one that would be written.
    const NoteHeader expected = HeaderOf(core, hex, kind, size - prefix);
    if (memcmp(&header, &expected, kCheckedBytes) != 0 ||
        absl::string_view(begin).substr(sizeof header) != kind) {
      return note->Damaged();
    }
    return note;
  }

  uint64_t bytes() const override { return header_.bytes; }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const override {
    if (offset > bytes() || out.size() > bytes() - offset) return Damaged();
    return file_->ReadAt(prefix() + offset, out);
  }
  void WillNeed() const override { file_->WillNeed(0, prefix() + bytes()); }

  // Calls use(piece) for all of the content, in order. DataLoss: it does not fit the checksum; then what was
  // given may be wrong.
  template <typename Use>
  absl::Status Read(size_t piece_bytes, const Use& use) const {
    RunningChecksum sum;
    BeginChecksum(header_, kind_, &sum);
    std::string piece;
    for (uint64_t at = 0; at < bytes(); at += piece.size()) {
      piece.resize(std::min<uint64_t>(piece_bytes, bytes() - at));
      RK_RETURN_IF_ERROR(ReadAt(at, {reinterpret_cast<std::byte*>(piece.data()), piece.size()}));
      sum.Update(piece);
      use(piece);
    }
    return sum.Sum() == header_.checksum ? absl::OkStatus() : Damaged();
  }

  absl::Status Damaged() const {
    return absl::DataLossError(
        absl::StrCat("the note ", file_->path(), " is damaged; the image itself is not"));
  }

 private:
  OpenedNote(std::unique_ptr<BlockFile> file, std::string kind)
      : file_(std::move(file)), kind_(std::move(kind)) {}
  uint64_t prefix() const { return sizeof(NoteHeader) + kind_.size(); }

  const std::unique_ptr<BlockFile> file_;
  const std::string kind_;
  NoteHeader header_{};
};

constexpr size_t kReadAtOnce = size_t{1} << 20;

// Notes of pages can be large; what the store may take in all is its owner's say.
absl::Status CheckRoom(StoreCore& core, uint64_t bytes) {
  RK_ASSIGN_OR_RETURN(StoreLimits limits, ReadLimits(core.path()));
  const LimitChecks checks(std::move(limits), core.path(), 0);
  if (checks.store_is_limited()) {
    const uint64_t beside = core.Beside(std::nullopt);  // may take long
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().Read());
    RK_ASSIGN_OR_RETURN(StoreBytes used, core.use().MeasureAll(core, txn));
    RK_RETURN_IF_ERROR(checks.Store(LimitChecks::Stage::kCommit, used.total(), bytes, beside));
  }
  if (!checks.has_high_water()) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(FileSystemUse use, MeasureFileSystem(core.path()));
  return checks.HighWater(LimitChecks::Stage::kCommit, use, bytes);
}

// The digest's digits and the kind of a name in notes/; empty when it is no note's.
std::pair<absl::string_view, absl::string_view> PartsOf(absl::string_view name) {
  if (name.size() <= kDigestHexDigits + 1 || name[kDigestHexDigits] != '.') return {};
  return {name.substr(0, kDigestHexDigits), name.substr(kDigestHexDigits + 1)};
}

absl::StatusOr<std::unique_ptr<OpenedNote>> Open(StoreCore& core, absl::string_view digest,
                                                 absl::string_view hex, absl::string_view kind) {
  absl::StatusOr<std::unique_ptr<OpenedNote>> note = OpenedNote::Open(core, hex, kind);
  if (!absl::IsNotFound(note.status())) return note;
  return absl::NotFoundError(absl::StrCat("there is no ", kind, " of image ", digest));
}

absl::Status Check(StoreCore& core, absl::string_view hex, absl::string_view kind, bool read_all) {
  RK_ASSIGN_OR_RETURN(std::unique_ptr<OpenedNote> note, OpenedNote::Open(core, hex, kind));
  if (!read_all && note->bytes() > kMaxNoteBytes) return absl::OkStatus();
  return note->Read(kReadAtOnce, [](absl::string_view) {});
}

// Stores that were made before there were notes have no folder for them.
absl::StatusOr<std::vector<std::string>> Names(const StoreCore& core) {
  auto names = ListDirectory(NotesFolder(core));
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  return names;
}

}  // namespace

bool IsNoteName(absl::string_view name) { return HexOf(absl::StrCat("sha256:", PartsOf(name).first)).ok(); }

std::string NotesFolder(const StoreCore& core) { return core.path() + "/notes"; }

absl::Status PutNote(StoreCore& core, const ImageInfo& image, absl::string_view kind,
                     absl::Span<const absl::string_view> parts) {
  RK_RETURN_IF_ERROR(core.CheckWritable());
  RK_RETURN_IF_ERROR(CheckKind(kind));
  RK_ASSIGN_OR_RETURN(std::string hex, HexOf(image.digest));
  uint64_t bytes = 0;
  for (absl::string_view part : parts) bytes += part.size();
  if (bytes > MostBytes(kind)) {
    return absl::InvalidArgumentError(absl::StrCat("a note of ", bytes, " bytes about image ",
                                                   image.reference, ": at most ", MostBytes(kind),
                                                   " are kept"));
  }
  if (kind == kWorkingSetPagesNote) {
    RK_RETURN_IF_ERROR(Annotate(CheckRoom(core, bytes),
                                absl::StrCat("keeping the pages that image ", image.reference, " needs")));
  }
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().Read());
    RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> images, txn.FindDigest(hex));
    if (images.empty()) {
      return absl::NotFoundError(
          absl::StrCat("no note is kept: the image ", image.reference, " was removed or replaced"));
    }
  }
  const std::string folder = NotesFolder(core), name = FileName(hex, kind);
  RK_RETURN_IF_ERROR(MakeDirectories(folder, 0700));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, CreateLocked(core.io(), /*direct=*/false, [&] {
                        return absl::StrCat(core.path(), "/tmp/", name, ".", absl::Hex(NewFileId()));
                      }));
  const std::string temporary = file->path();
  NoteHeader header = HeaderOf(core, hex, kind, bytes);
  RunningChecksum sum;
  BeginChecksum(header, kind, &sum);
  for (absl::string_view part : parts) sum.Update(part);
  header.checksum = sum.Sum();
  const std::string begin =
      absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&header), sizeof header), kind);
  uint64_t offset = 0;
  auto append = [&](absl::string_view part) -> absl::Status {
    RK_RETURN_IF_ERROR(file->WriteAt(offset, {reinterpret_cast<const std::byte*>(part.data()), part.size()}));
    offset += part.size();
    return absl::OkStatus();
  };
  auto write = [&]() -> absl::Status {
    RK_RETURN_IF_ERROR(append(begin));
    for (absl::string_view part : parts) RK_RETURN_IF_ERROR(append(part));
    RK_RETURN_IF_ERROR(file->Sync());
    RK_RETURN_IF_ERROR(core.io()->Rename(temporary, absl::StrCat(folder, "/", name)));
    return core.io()->SyncDirectory(folder);
  };
  absl::Status status = write();
  if (!status.ok()) (void)core.io()->Unlink(temporary);
  return Annotate(status, absl::StrCat("keeping a note about image ", image.reference));
}

absl::StatusOr<std::string> GetNote(StoreCore& core, absl::string_view digest, absl::string_view kind) {
  RK_RETURN_IF_ERROR(CheckKind(kind));
  RK_ASSIGN_OR_RETURN(std::string hex, HexOf(digest));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<OpenedNote> note, Open(core, digest, hex, kind));
  std::string bytes;
  RK_RETURN_IF_ERROR(
      note->Read(kReadAtOnce, [&bytes](absl::string_view piece) { absl::StrAppend(&bytes, piece); }));
  return bytes;
}

absl::StatusOr<std::unique_ptr<NoteReader>> OpenNote(StoreCore& core, absl::string_view digest,
                                                     absl::string_view kind) {
  RK_RETURN_IF_ERROR(CheckKind(kind));
  RK_ASSIGN_OR_RETURN(std::string hex, HexOf(digest));
  return Open(core, digest, hex, kind);
}

absl::Status RemoveNote(StoreCore& core, absl::string_view digest, absl::string_view kind) {
  RK_RETURN_IF_ERROR(core.CheckWritable());
  RK_RETURN_IF_ERROR(CheckKind(kind));
  RK_ASSIGN_OR_RETURN(std::string hex, HexOf(digest));
  const std::string path = absl::StrCat(NotesFolder(core), "/", FileName(hex, kind));
  if (!PathExists(path)) return absl::NotFoundError(absl::StrCat("there is no ", kind, " of image ", digest));
  RK_RETURN_IF_ERROR(core.io()->Unlink(path));
  return core.io()->SyncDirectory(NotesFolder(core));
}

absl::StatusOr<bool> HasNotes(const StoreCore& core, absl::string_view kind) {
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, Names(core));
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return PartsOf(name).second == kind; });
}

absl::Status DeleteImageAndNotes(StoreCore& core, Catalog::Txn& txn, const ImageRecord& image,
                                 absl::string_view heir) {
  RK_RETURN_IF_ERROR(txn.DeleteImage(image));
  absl::StatusOr<std::string> hex = HexOf(image.info.digest);
  if (!hex.ok() || image.info.digest == heir) return absl::OkStatus();
  RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> same, txn.FindDigest(*hex));
  if (!same.empty()) return absl::OkStatus();
  // Before the image: what is lost if that fails can be learned again, and nothing is ever left over.
  bool removed = false;
  for (absl::string_view kind : kNoteKinds) {
    const std::string path = absl::StrCat(NotesFolder(core), "/", FileName(*hex, kind));
    if (!PathExists(path)) continue;
    RK_RETURN_IF_ERROR(core.io()->Unlink(path));
    removed = true;
  }
  return removed ? core.io()->SyncDirectory(NotesFolder(core)) : absl::OkStatus();
}

absl::StatusOr<uint64_t> MeasureNotes(StoreCore& core) {
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, Names(core));
  uint64_t bytes = 0;
  for (const std::string& name : names) {
    struct stat info;
    if (::stat(absl::StrCat(NotesFolder(core), "/", name).c_str(), &info) == 0) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

absl::StatusOr<std::vector<NoteProblem>> OrphanedNotes(StoreCore& core) {
  // In this order: what is put now has an image in the catalog that is read then.
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, Names(core));
  RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().ReadNow());
  std::vector<NoteProblem> orphans;
  for (const std::string& name : names) {
    if (!IsNoteName(name)) continue;  // a stranger's
    RK_ASSIGN_OR_RETURN(const std::vector<ImageRecord> images, txn.FindDigest(PartsOf(name).first));
    if (!images.empty()) continue;
    const std::string path = absl::StrCat(NotesFolder(core), "/", name);
    orphans.push_back({path, absl::StrCat("the note ", path, " belongs to no image; gc removes it")});
  }
  return orphans;
}

absl::StatusOr<std::vector<NoteProblem>> CheckNotes(StoreCore& core, bool read_all, absl::Status& unclear,
                                                    const std::atomic<bool>* cancel) {
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, Names(core));
  std::vector<NoteProblem> problems;
  for (const std::string& name : names) {
    if (cancel != nullptr && *cancel) break;
    const auto [hex, kind] = PartsOf(name);
    if (!CheckKind(kind).ok()) continue;  // of a newer Rekindle
    absl::Status status = Check(core, hex, kind, read_all);
    if (status.ok() || absl::IsNotFound(status) || absl::IsFailedPrecondition(status)) continue;
    if (absl::IsDataLoss(status)) {
      problems.push_back({absl::StrCat(NotesFolder(core), "/", name), std::string(status.message())});
    } else {
      unclear.Update(status);
    }
  }
  RK_ASSIGN_OR_RETURN(std::vector<NoteProblem> orphans, OrphanedNotes(core));
  for (NoteProblem& orphan : orphans) {
    const bool told = std::any_of(problems.begin(), problems.end(),
                                  [&](const NoteProblem& p) { return p.path == orphan.path; });
    if (!told) problems.push_back(std::move(orphan));
  }
  return problems;
}

}  // namespace rekindle::store
