#include "dedup_store/store_notes.h"

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
#include "dedup_store/locked_file.h"
#include "dedup_store/pack.h"

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

std::string Folder(const StoreCore& core) { return core.path() + "/notes"; }

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

std::string Encode(const StoreCore& core, absl::string_view hex, absl::string_view kind,
                   absl::string_view bytes) {
  NoteHeader header{};
  memcpy(header.magic, kNoteMagic, sizeof header.magic);
  header.version = kNoteVersion;
  header.kind_bytes = static_cast<uint32_t>(kind.size());
  memcpy(header.store_uuid, core.identity().uuid.data(), sizeof header.store_uuid);
  memcpy(header.image_digest, BytesOfHex(hex).data(), sizeof header.image_digest);
  header.bytes = bytes.size();
  const absl::string_view covered(reinterpret_cast<const char*>(&header), offsetof(NoteHeader, checksum));
  header.checksum = Checksum(absl::StrCat(covered, kind, bytes));
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&header), sizeof header), kind, bytes);
}

// The content of a note's file. DataLoss: it is not as it was written.
absl::StatusOr<std::string> Read(StoreCore& core, absl::string_view hex, absl::string_view kind) {
  const std::string path = absl::StrCat(Folder(core), "/", FileName(hex, kind));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, core.io()->Open(path, false));
  RK_ASSIGN_OR_RETURN(uint64_t size, file->Size());
  const uint64_t prefix = sizeof(NoteHeader) + kind.size();
  auto damaged = [&] {
    return absl::DataLossError(absl::StrCat("the note ", path, " is damaged; the image itself is not"));
  };
  if (size < prefix || size > prefix + kMaxNoteBytes) return damaged();
  std::string content(size, '\0');
  RK_RETURN_IF_ERROR(file->ReadAt(0, {reinterpret_cast<std::byte*>(content.data()), content.size()}));
  NoteHeader header;
  memcpy(&header, content.data(), sizeof header);
  if (memcmp(header.magic, kNoteMagic, sizeof header.magic) == 0 && header.version > kNoteVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the note ", path, " has version ", header.version, ", newer than this Rekindle knows"));
  }
  std::string bytes = content.substr(prefix);
  // Whatever of the file was changed, it is not the one that would be written.
  if (content != Encode(core, hex, kind, bytes)) return damaged();
  return bytes;
}

// The digest's digits and the kind of a name in notes/; empty when it is no note's.
std::pair<absl::string_view, absl::string_view> PartsOf(absl::string_view name) {
  if (name.size() <= kDigestHexDigits + 1 || name[kDigestHexDigits] != '.') return {};
  return {name.substr(0, kDigestHexDigits), name.substr(kDigestHexDigits + 1)};
}

// Stores that were made before there were notes have no folder for them.
absl::StatusOr<std::vector<std::string>> Names(const StoreCore& core) {
  auto names = ListDirectory(Folder(core));
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  return names;
}

}  // namespace

absl::Status PutNote(StoreCore& core, const ImageInfo& image, absl::string_view kind,
                     absl::string_view bytes) {
  RK_RETURN_IF_ERROR(core.CheckWritable());
  RK_RETURN_IF_ERROR(CheckKind(kind));
  RK_ASSIGN_OR_RETURN(std::string hex, HexOf(image.digest));
  if (bytes.size() > kMaxNoteBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a note of ", bytes.size(), " bytes about image ",
                                                   image.reference, ": at most ", kMaxNoteBytes,
                                                   " are kept"));
  }
  {
    RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().Read());
    RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> images, txn.FindDigest(hex));
    if (images.empty()) {
      return absl::NotFoundError(
          absl::StrCat("no note is kept: the image ", image.reference, " was removed or replaced"));
    }
  }
  const std::string folder = Folder(core), name = FileName(hex, kind);
  RK_RETURN_IF_ERROR(MakeDirectories(folder, 0700));
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, CreateLocked(core.io(), /*direct=*/false, [&] {
                        return absl::StrCat(core.path(), "/tmp/", name, ".", absl::Hex(NewFileId()));
                      }));
  const std::string temporary = file->path();
  const std::string content = Encode(core, hex, kind, bytes);
  auto write = [&]() -> absl::Status {
    RK_RETURN_IF_ERROR(
        file->WriteAt(0, {reinterpret_cast<const std::byte*>(content.data()), content.size()}));
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
  absl::StatusOr<std::string> bytes = Read(core, hex, kind);
  if (!absl::IsNotFound(bytes.status())) return bytes;
  return absl::NotFoundError(absl::StrCat("there is no ", kind, " of image ", digest));
}

absl::Status RemoveNote(StoreCore& core, absl::string_view digest, absl::string_view kind) {
  RK_RETURN_IF_ERROR(core.CheckWritable());
  RK_RETURN_IF_ERROR(CheckKind(kind));
  RK_ASSIGN_OR_RETURN(std::string hex, HexOf(digest));
  const std::string path = absl::StrCat(Folder(core), "/", FileName(hex, kind));
  if (!PathExists(path)) return absl::NotFoundError(absl::StrCat("there is no ", kind, " of image ", digest));
  RK_RETURN_IF_ERROR(core.io()->Unlink(path));
  return core.io()->SyncDirectory(Folder(core));
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
    const std::string path = absl::StrCat(Folder(core), "/", FileName(*hex, kind));
    if (!PathExists(path)) continue;
    RK_RETURN_IF_ERROR(core.io()->Unlink(path));
    removed = true;
  }
  return removed ? core.io()->SyncDirectory(Folder(core)) : absl::OkStatus();
}

absl::StatusOr<std::vector<NoteProblem>> OrphanedNotes(StoreCore& core) {
  // In this order: what is put now has an image in the catalog that is read then.
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, Names(core));
  RK_ASSIGN_OR_RETURN(Catalog::Txn txn, core.catalog().Read());
  std::vector<NoteProblem> orphans;
  for (const std::string& name : names) {
    const auto [hex, kind] = PartsOf(name);
    bool known = false;
    if (HexOf(absl::StrCat("sha256:", hex)).ok()) {
      RK_ASSIGN_OR_RETURN(std::vector<ImageRecord> images, txn.FindDigest(hex));
      known = !images.empty();
    }
    if (known) continue;
    const std::string path = absl::StrCat(Folder(core), "/", name);
    orphans.push_back({path, absl::StrCat("the note ", path, " belongs to no image; gc removes it")});
  }
  return orphans;
}

absl::StatusOr<std::vector<NoteProblem>> CheckNotes(StoreCore& core, absl::Status& unclear) {
  RK_ASSIGN_OR_RETURN(std::vector<std::string> names, Names(core));
  std::vector<NoteProblem> problems;
  for (const std::string& name : names) {
    const auto [hex, kind] = PartsOf(name);
    if (!CheckKind(kind).ok()) continue;  // of a newer Rekindle
    absl::Status status = Read(core, hex, kind).status();
    if (status.ok() || absl::IsNotFound(status) || absl::IsFailedPrecondition(status)) continue;
    if (absl::IsDataLoss(status)) {
      problems.push_back({absl::StrCat(Folder(core), "/", name), std::string(status.message())});
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
