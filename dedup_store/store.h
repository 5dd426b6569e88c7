// A content-addressed store of page-addressed images.
//
// An image is an immutable set of named objects under a reference "name:tag". An object is either a blob (a
// byte string) or paged (4 KiB pages at page-aligned addresses, sparse). Pages are deduplicated against the
// parent image (same object name, same address) and by content against everything else in the store; zero
// pages take no room; what is left is compressed where that helps and appended to pack files.
// docs/store-format.md describes the formats.
//
// Several processes may have one store open at once, reading and writing; each commit is one atomic
// transaction. A store killed at any instant keeps every committed image whole and nothing of the others.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dedup_store/limits.h"

namespace rekindle::store {

class BlockIo;  // dedup_store/block_io.h: the I/O that a test can fail at any operation

inline constexpr size_t kPageSize = 4096;

// What is kept beside images: see Store::PutNote.
inline constexpr absl::string_view kWorkingSetNote = "working-set";
inline constexpr absl::string_view kTouchedFilesNote = "touched-files";
inline constexpr absl::string_view kWorkingSetPagesNote = "working-set-pages";
inline constexpr absl::string_view kLoadedFilesNote = "loaded-files";
inline constexpr absl::string_view kNoteKinds[] = {kWorkingSetNote, kTouchedFilesNote, kWorkingSetPagesNote,
                                                   kLoadedFilesNote};
// Of one note. Those of pages are meant to be read with OpenNote.
inline constexpr uint64_t kMaxNoteBytes = uint64_t{16} << 20;
inline constexpr uint64_t kMaxPagesNoteBytes = uint64_t{320} << 20;

struct StoreOptions {
  std::string path;
  bool create = true;            // make the store where the folder is absent or empty
  bool read_only = false;        // nothing may be written; works on a read-only file system
  bool rebuild_catalog = false;  // when both copies of the catalog are lost, make it again from the packs
  int compression_level = 1;     // zstd
  size_t worker_threads = 0;     // 0: one per core
  BlockIo* io = nullptr;         // null: io_uring with O_DIRECT; must outlive the store
  // What lies in the store's folder that the store knows nothing of, and that counts for its limits as images
  // do: an owner's, or all. Null: nothing. Called on any thread, never in a transaction.
  std::function<uint64_t(std::optional<uid_t> owner)> beside = nullptr;
};

struct ImageStats {
  uint64_t logical_bytes = 0;   // of all objects, zero pages included
  uint64_t zero_bytes = 0;      // pages that are all zero
  uint64_t parent_bytes = 0;    // pages found in the parent at the same address
  uint64_t shared_bytes = 0;    // pages found elsewhere in the store, or earlier in the same image
  uint64_t new_bytes = 0;       // pages and blobs that this image brought, before compression
  uint64_t stored_bytes = 0;    // what they take in packs, after compression
  uint64_t metadata_bytes = 0;  // manifest and index records that this image added
};

// About what a writer of a new image takes of RAM for each page that it brings, until it is committed: where
// the page lies, whether it is known already, and its fingerprint, in tables that grow by doubling.
inline constexpr uint64_t kWriterBytesPerPage = 90;

// What the image brought, which counts against its owner's quota while it is there. owner_use.h has the rest.
inline uint64_t QuotaBytes(const ImageStats& stats) { return stats.stored_bytes + stats.metadata_bytes; }

struct ImageInfo {
  std::string reference;  // "name:tag"
  std::string digest;     // "sha256:<64 hex>" of its content
  std::string parent_digest;
  int64_t created_unix_ns = 0;
  uid_t owner = 0;
  ImageStats stats;
  std::map<std::string, std::string> labels;  // the caller's; kept small: `List` reads them
  // Ascends from commit to commit of the store, whatever the nodes' clocks say. 0: not of a store.
  uint64_t commit_number = 0;
};

struct NewImageOptions {
  std::string reference;  // "name:tag" or "name" (tag "latest"); InvalidArgument when malformed
  std::string parent;     // reference or digest; empty: none
  uid_t owner = 0;
  bool replace = false;  // false: AlreadyExists when the reference is taken
  // With `replace`: also an image of another owner. False: PermissionDenied, whoever gets the reference until
  // the very moment of the commit.
  bool replace_others = false;
  std::map<std::string, std::string> labels;
  // Not empty: Commit makes the image whole and durable under this id (see Store::PublishPrepared) and keeps
  // its reference for it, but nobody sees it. 1 to 128 letters, digits, '-', '_' and '.'.
  std::string prepared_id;
  // The processors have other work: only what shrinks by a quarter at least is compressed.
  bool sparing = false;
  // Not 0: pages are stored while more are added, in the background, so that little is left to Commit: for
  // pages that come slowly. About how many bytes of them will come. What other writers store meanwhile may be
  // stored once more.
  uint64_t coming_bytes = 0;
};

// Stored, but not yet there: somebody else is to decide.
struct PreparedImage {
  std::string id;
  ImageInfo info;  // as it will be
};

struct PageRun {
  uint64_t address = 0;  // bytes, page-aligned
  uint64_t pages = 0;
  bool zero = false;  // all of these pages are zero

  uint64_t end() const { return address + pages * kPageSize; }
};

// Pages that are stored, read and verified together. Names one for as long as the store exists: equal ids
// mean equal pages, whichever image they were asked of.
struct FrameId {
  uint64_t pack = 0;
  uint32_t frame = 0;
  friend bool operator==(const FrameId& a, const FrameId& b) = default;
  friend auto operator<=>(const FrameId& a, const FrameId& b) = default;
  template <typename H>
  friend H AbslHashValue(H h, const FrameId& id) {
    return H::combine(std::move(h), id.pack, id.frame);
  }
};

inline constexpr uint32_t kMaxPagesOfFrame = 64;

// Neighbouring pages of an object that lie in one frame, or are all zero.
struct StoredRun {
  uint64_t address = 0;  // bytes, page-aligned
  uint32_t pages = 0;
  bool zero = false;           // then there is no frame
  FrameId frame;               // which holds them
  uint32_t page_in_frame = 0;  // where the first one lies in it

  uint64_t end() const { return address + pages * kPageSize; }
};

struct ObjectInfo {
  std::string name;
  bool paged = false;
  uint64_t bytes = 0;  // blob length, or pages x 4096
};

// One image being written. Not thread-safe, but does its own work on several threads. Destroying it before
// Commit leaves no trace.
class ImageWriter {
 public:
  virtual ~ImageWriter() = default;
  virtual absl::Status AddBlob(absl::string_view name, absl::string_view bytes) = 0;
  // Adds pages at `address` (page-aligned, whole pages). Within an object addresses must ascend over the
  // calls. `pages` must stay valid and unchanged until Commit returns or the writer is destroyed; no copy is
  // made. With NewImageOptions::coming_bytes also what Commit returns, as soon as it is known that it fails.
  virtual absl::Status AddPages(absl::string_view name, uint64_t address,
                                absl::Span<const std::byte> pages) = 0;

  // As AddPages with pages that are all zero, however many: they cost no memory.
  virtual absl::Status AddZeroPages(absl::string_view name, uint64_t address, uint64_t pages) = 0;

  // Of the image that NewImageOptions::parent named; empty: there is none.
  virtual std::string parent_digest() const = 0;
  // Has the parent's object of this name all pages from `address` on, none of them known to be damaged? Reads
  // nothing; any thread, as long as nobody commits.
  virtual bool ParentHas(absl::string_view name, uint64_t address, uint64_t pages) const = 0;
  // As AddPages with what the parent has there, which is not read. FailedPrecondition unless ParentHas.
  virtual absl::Status AddParentPages(absl::string_view name, uint64_t address, uint64_t pages) = 0;

  // Hashes, deduplicates, compresses, writes, syncs, then makes the image visible (or prepared) in one
  // transaction.
  // `progress(done, total)` in bytes may be called from any thread, one call at a time; returning false
  // cancels (Cancelled). ResourceExhausted when the disk or a quota is full: nothing of the image stays.
  // `still_held` is asked when all pages have been read: another status than OK means that what was read was
  // not what was added, and nothing of the image stays.
  virtual absl::StatusOr<ImageInfo> Commit(std::function<bool(uint64_t, uint64_t)> progress = {},
                                           std::function<absl::Status()> still_held = {}) = 0;
};

// One committed image. Thread-safe. Every page and blob is verified before it is handed out: DataLoss names
// the image, object and address of what is damaged.
class ImageReader {
 public:
  virtual ~ImageReader() = default;
  virtual const ImageInfo& info() const = 0;
  virtual const std::vector<ObjectInfo>& objects() const = 0;
  virtual absl::StatusOr<std::string> ReadBlob(absl::string_view name) const = 0;
  // The populated pages in ascending order, neighbours of one kind merged.
  virtual absl::StatusOr<std::vector<PageRun>> Runs(absl::string_view name) const = 0;
  // Fills `out` (whole pages) with the pages at `address`; OutOfRange when one of them is not populated.
  virtual absl::Status ReadPages(absl::string_view name, uint64_t address,
                                 absl::Span<std::byte> out) const = 0;
  // Reads many ranges with several threads and deep I/O. `sink(address, pages)` gets verified bytes in no
  // given order, from several threads at once; a status other than OK ends the reading and is returned. Zero
  // pages of the ranges are not given to the sink. OutOfRange, before anything is read, when a page is not
  // populated.
  using PageSink = std::function<absl::Status(uint64_t address, absl::Span<const std::byte> pages)>;
  virtual absl::Status ReadRanges(absl::string_view name, absl::Span<const PageRun> ranges,
                                  const PageSink& sink) const = 0;

  // Where each populated page of a paged object lies, by ascending address.
  virtual absl::StatusOr<std::vector<StoredRun>> Layout(absl::string_view name) const = 0;
  // How many pages a frame has, 1 to kMaxPagesOfFrame; 0 when this image uses nothing of its pack.
  virtual uint32_t FramePages(FrameId frame) const = 0;
  // Fills `out`, of as many bytes as the frame's pages have. DataLoss names image, pack and frame.
  virtual absl::Status LoadFrame(FrameId frame, absl::Span<std::byte> out) const = 0;
  // Loads many frames in the order of the disk, with several threads and deep I/O. `where(index)` says where
  // the pages of frames[index] go, just before they do; an empty span leaves the frame out. `loaded(index)`
  // follows as soon as they are there and verified. Both are called from several threads at once; of one
  // thread, loaded() of a frame comes before the pages of the next go anywhere, so that a thread may use the
  // same memory for all of its frames. A status
  // other than OK from `loaded` ends the loading and is returned.
  using FrameTarget = std::function<absl::Span<std::byte>(size_t index)>;
  using FrameLoaded = std::function<absl::Status(size_t index)>;
  virtual absl::Status LoadFrames(absl::Span<const FrameId> frames, const FrameTarget& where,
                                  const FrameLoaded& loaded) const = 0;
};

// A note that is read piece by piece, because all of it at once is much. Thread-safe.
//
// What it gives is not verified: this is for contents that carry digests of their own.
class NoteReader {
 public:
  virtual ~NoteReader() = default;
  virtual uint64_t bytes() const = 0;
  // DataLoss: it ends before.
  virtual absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const = 0;
  virtual void WillNeed() const = 0;  // all of it; a hint
};

// How much of two images is equal, per object.
struct ObjectDifference {
  std::string name;
  uint64_t bytes_a = 0, bytes_b = 0;  // 0 where the object is absent
  uint64_t equal_bytes = 0;           // same address (blobs: whole), same content
  std::vector<PageRun> changed;       // paged objects: addresses whose pages differ or are in B only
};

struct GcOptions {
  bool dry_run = false;
  const std::atomic<bool>* cancel = nullptr;  // ends it soon with Cancelled; the next gc does the rest
};
struct GcReport {
  uint64_t packs_removed = 0, packs_rewritten = 0;
  uint64_t bytes_freed = 0;        // of disk
  uint64_t leftovers_removed = 0;  // files of writers that died
  // Left to the next gc: somebody reads them, writes an image that needs them, or holds their lock though it
  // is stopped or its node is gone.
  uint64_t packs_in_use = 0;
};

struct FsckOptions {
  bool read_data = false;  // read and verify every stored byte, not the structure alone
  bool repair = false;     // drop what can't be reached, rebuild the index
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
  // Ends it soon with Cancelled, nothing repaired. A repair that has begun goes on to its end.
  const std::atomic<bool>* cancel = nullptr;
};
struct FsckReport {
  uint64_t images_checked = 0, chunks_checked = 0, bytes_read = 0;
  std::vector<std::string> problems;     // one plain sentence each; empty: the store is whole
  std::vector<std::string> lost_images;  // references of images that can't be read any more
};

struct StoreStats {
  uint64_t images = 0, packs = 0, chunks = 0;
  uint64_t logical_bytes = 0;   // sum over images
  uint64_t pack_bytes = 0;      // on disk
  uint64_t metadata_bytes = 0;  // catalog, index, manifests and notes on disk
  FileSystemUse file_system;    // that the store is on
};

// Where the bytes of an image are. What is stored, compressed and freed as one is a frame of up to 64 pages:
// it is shared as soon as another image needs one of its pages.
struct ImageShare {
  std::string reference;
  uint64_t stored_bytes = 0;
};
struct ImageBytes {
  // Its memory: the last three add up to the first.
  uint64_t logical_bytes = 0, zero_bytes = 0, unique_bytes = 0, shared_bytes = 0;
  // On disk: unique and shared add up to compressed and raw.
  uint64_t unique_stored_bytes = 0;  // come back with Remove and Gc
  uint64_t shared_stored_bytes = 0;
  uint64_t compressed_from_bytes = 0, compressed_to_bytes = 0;
  uint64_t raw_bytes = 0;
  uint64_t metadata_bytes = 0;       // what the image added of it
  std::vector<ImageShare> shares;    // with whom, most first
  uint64_t hidden_stored_bytes = 0;  // shared with images that may not be seen
  std::vector<std::string> unread;   // damaged images, left out; "" for one that may not be seen
};

using MaySee = std::function<bool(const ImageInfo&)>;

// Of a store that was at this path, and is not now.
absl::Status StoreIsAway(absl::string_view path);

// Thread-safe.
class Store {
 public:
  // NotFound: the folder is absent or empty, and no store is to be made there. FailedPrecondition: it holds
  // something else, or a store of a newer format (the message says which). PermissionDenied: it can't be
  // written and read_only was not asked for.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const StoreOptions& options);
  virtual ~Store() = default;

  virtual const std::string& path() const = 0;
  // Which store it is, wherever it lies: 32 hex digits. No secret.
  virtual std::string id() const = 0;
  // Unavailable: what was opened is not at its path now, since its file system is not mounted, say. What
  // changes the store is refused with it then.
  virtual absl::Status CheckIsThere() const = 0;
  // Whether it is the store, and no image, of which nothing can be read. DataLoss: its catalog is damaged;
  // Unavailable: as CheckIsThere, or none of its packs is there, as where they are on a file system that is
  // not mounted.
  virtual absl::Status CheckReadable() const = 0;
  // Of one that is not there: whether somebody has removed the folder, or all that was in it, and not just a
  // file system with it. Then another may be made in its place.
  virtual bool WasRemoved() const = 0;
  virtual absl::StatusOr<std::unique_ptr<ImageWriter>> NewImage(const NewImageOptions& options) = 0;
  // `image` is "name:tag", "name" (tag latest), "name@sha256:…" or "sha256:…" (a unique prefix of 12 digits
  // or more is enough). NotFound names the closest reference there is.
  virtual absl::StatusOr<std::unique_ptr<ImageReader>> OpenImage(absl::string_view image) const = 0;
  // With `may_see` a digest finds only what that says yes to: a name is known to who gives it, whose images
  // have a digest is not.
  virtual absl::StatusOr<ImageInfo> Find(absl::string_view image, const MaySee& may_see = nullptr) const = 0;
  // The image that has this very name, "name:tag", now. Nothing: none has. For who expects that there is
  // none: Find looks for what comes near, and so at every image.
  virtual absl::StatusOr<std::optional<ImageInfo>> FindByName(absl::string_view reference) const = 0;
  // Last committed first; reads the catalog alone. With `wanted` only what that says yes to.
  virtual absl::StatusOr<std::vector<ImageInfo>> List(
      const std::function<bool(const ImageInfo&)>& wanted = nullptr) const = 0;
  // Its space comes back with Gc. `may` is asked about the very image that is to go, and with another status
  // than OK it stays: what was found by this name before may be another by now. By a digest only those are
  // found that may go.
  virtual absl::Status Remove(absl::string_view image,
                              const std::function<absl::Status(const ImageInfo&)>& may = nullptr) = 0;
  // Only this very image: NotFound when its reference is another's by now.
  virtual absl::Status RemoveExactly(const ImageInfo& image) = 0;

  // Of images that were committed with a prepared_id and are neither published nor removed since.
  virtual absl::StatusOr<std::vector<PreparedImage>> ListPrepared() const = 0;
  // Makes it visible under its reference, in the place of the image that had that, if any. NotFound: none is
  // prepared under this id. All or nothing, and durable.
  virtual absl::StatusOr<ImageInfo> PublishPrepared(absl::string_view id) = 0;
  virtual absl::Status RemovePrepared(absl::string_view id) = 0;  // NotFound as above

  // Keeps something about an image beside it, in the place of what was kept before: one of kNoteKinds, at
  // most kMaxNoteBytes. It belongs to all images with this digest and goes with the last of them. NotFound
  // when there is none any more. All or nothing, and durable.
  virtual absl::Status PutNote(const ImageInfo& image, absl::string_view kind, absl::string_view bytes) = 0;
  // The same for content that lies in several places, of kWorkingSetPagesNote up to kMaxPagesNoteBytes. That
  // kind is refused (ResourceExhausted) where the store's limits leave no room for it.
  virtual absl::Status PutNote(const ImageInfo& image, absl::string_view kind,
                               absl::Span<const absl::string_view> parts) = 0;
  // `digest`: "sha256:<64 hex>". NotFound: there is none. DataLoss: it is damaged, which the image is not.
  virtual absl::StatusOr<std::string> GetNote(absl::string_view digest, absl::string_view kind) const = 0;
  // As GetNote; DataLoss: it is not what its name says, or of another length.
  virtual absl::StatusOr<std::unique_ptr<NoteReader>> OpenNote(absl::string_view digest,
                                                               absl::string_view kind) const = 0;
  virtual absl::Status RemoveNote(absl::string_view digest, absl::string_view kind) = 0;
  virtual absl::StatusOr<bool> HasNotes(absl::string_view kind) const = 0;  // of any image

  // `*cancel` ends it soon with Cancelled.
  virtual absl::StatusOr<std::vector<ObjectDifference>> Diff(
      absl::string_view a, absl::string_view b, const std::atomic<bool>* cancel = nullptr) const = 0;
  virtual absl::StatusOr<GcReport> Gc(const GcOptions& options) = 0;
  virtual absl::StatusOr<FsckReport> Fsck(const FsckOptions& options) = 0;
  virtual absl::StatusOr<StoreStats> Stats() const = 0;
  // Reads the manifests of all images. Those that `may_see` refuses are summed up without their names.
  // `*cancel` ends it soon with Cancelled.
  virtual absl::StatusOr<ImageBytes> WhereBytesAre(
      absl::string_view image, const std::function<bool(const ImageInfo&)>& may_see = nullptr,
      const std::atomic<bool>* cancel = nullptr) const = 0;
  // DataLoss when it can't be told what they are: then no image is taken until they are set again.
  virtual absl::StatusOr<StoreLimits> Limits() const = 0;
  // Holds for every image that is not committed yet. `warning` gets what the administrator should know.
  virtual absl::StatusOr<StoreLimits> ChangeLimits(const LimitsChange& change, std::string* warning) = 0;
};

// "name[:tag]" checked and completed to "name:tag". Names: parts of [a-z0-9]+ joined by one of . _ - or by
// '/', at most 255 characters; tags: [A-Za-z0-9_][A-Za-z0-9._-]{0,127}. InvalidArgument says what is wrong.
absl::StatusOr<std::string> NormalizeReference(absl::string_view reference);

// A list of images has all of them: InvalidArgument where those of an image have more than 1 MiB.
inline constexpr size_t kMostLabelBytes = size_t{1} << 20;
absl::Status CheckLabels(const std::map<std::string, std::string>& labels);

}  // namespace rekindle::store
