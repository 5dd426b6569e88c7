// The catalog: one small record for each image, pack and index file. Everything large lies in packs. A commit
// here is what makes an image visible.
//
// It is held in memory and kept on disk as a checksummed log in two copies (catalog_log.h), of which all
// processes together are the writers: a transaction is appended under a lock, others read what was added.
// docs/store-format.md says what survives which damage.
//
// Catalog is thread-safe. A Txn belongs to one thread at a time and sees one state of the catalog; changes
// are made by Update alone, whose transactions exclude each other between all processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dedup_store/block_io.h"
#include "dedup_store/store.h"

namespace rekindle::store {

struct ImageRecord {
  uint64_t id = 0;             // ascending in order of commits
  uint64_t manifest_pack = 0;  // the pack that holds the manifest
  ImageInfo info;

  std::string Encode() const;
  static absl::StatusOr<ImageRecord> Decode(absl::string_view bytes);
};

using ImageRecordPtr = std::shared_ptr<const ImageRecord>;

struct PackRecord {
  uint64_t id = 0;
  uint64_t file_bytes = 0;
  uint64_t stored_bytes = 0;  // of its frames
  uint32_t frames = 0;
  uint32_t pages = 0;
  uint64_t index_id = 0;  // the index file that covers it; 0: looked up in its own digest table

  std::string Encode() const;
  static absl::StatusOr<PackRecord> Decode(absl::string_view bytes);
};

// What gc found to be unreachable in a pack. A bit is one frame, the bit after the last one the manifest.
// Such frames are never referred to again, whether or not their space was given back yet.
struct DeadRecord {
  bool given_back = false;
  std::vector<bool> dead;

  std::string Encode() const;
  static absl::StatusOr<DeadRecord> Decode(absl::string_view bytes);
};

struct IndexRecord {
  uint64_t id = 0;
  uint64_t entries = 0;
  uint64_t file_bytes = 0;

  std::string Encode() const;
  static absl::StatusOr<IndexRecord> Decode(absl::string_view bytes);
};

class Catalog {
 public:
  class Txn {
   public:
    Txn(Txn&& other) noexcept;
    Txn& operator=(Txn&&) = delete;
    ~Txn();  // aborts, unless Update committed it

    absl::StatusOr<std::vector<ImageRecord>> Images();
    // Without copies of them: in order of their ids. `each` must not keep what it gets.
    void ForEachImage(const std::function<void(const ImageRecord&)>& each);
    // Those with greater ids, without copies of them, too. After 0: all.
    absl::StatusOr<std::vector<ImageRecordPtr>> ImagesAfter(uint64_t id);
    absl::StatusOr<std::optional<ImageRecord>> FindImage(uint64_t id);
    absl::StatusOr<std::optional<ImageRecord>> FindReference(absl::string_view reference);
    // Images whose reference begins with this.
    absl::StatusOr<std::vector<ImageRecord>> WithReferencePrefix(absl::string_view prefix);
    // Images whose digest begins with these hex digits (without "sha256:"), oldest first.
    absl::StatusOr<std::vector<ImageRecord>> FindDigest(absl::string_view hex_prefix);
    absl::StatusOr<uint64_t> NextImageId();
    absl::Status PutImage(const ImageRecord& record);
    absl::Status DeleteImage(const ImageRecord& record);

    absl::StatusOr<std::vector<PackRecord>> Packs();
    absl::StatusOr<std::optional<PackRecord>> FindPack(uint64_t id);
    absl::Status PutPack(const PackRecord& record);
    absl::Status DeletePack(uint64_t id);  // and its DeadRecord
    absl::StatusOr<std::optional<DeadRecord>> FindDead(uint64_t pack_id);
    // The same without a copy: null where there is none, the same object as long as nothing was put there.
    std::shared_ptr<const DeadRecord> SharedDead(uint64_t pack_id);
    absl::Status PutDead(uint64_t pack_id, const DeadRecord& record);

    absl::StatusOr<std::vector<IndexRecord>> Indexes();
    absl::Status PutIndex(const IndexRecord& record);
    absl::Status DeleteIndex(uint64_t id);

    uint64_t bytes_used();  // of the catalog's files

    struct State;  // for the implementation alone
    explicit Txn(std::unique_ptr<State> state);

   private:
    std::unique_ptr<State> state_;
  };

  // Makes an empty catalog in the folder `path`, unless there is one.
  static absl::Status Create(const std::string& path, BlockIo* io);
  // Opens the one that is there; nothing is written before the first Update. One process gets the same object
  // for the same folder and `io` every time. DataLoss when both copies are damaged at the same place, or
  // gone.
  static absl::StatusOr<std::shared_ptr<Catalog>> Open(const std::string& path, BlockIo* io);
  // Puts a catalog made of what `find` finds in the place of one that can't be read; nobody commits from
  // before `find` is called until then. False: it can be read, others have seen to that. Of images with one
  // reference the last stays; an image without an id gets the next one.
  struct Found {
    std::vector<PackRecord> packs;
    std::vector<ImageRecord> images;
  };
  static absl::StatusOr<bool> Rebuild(const std::string& path, BlockIo* io,
                                      const std::function<absl::StatusOr<Found>()>& find);
  virtual ~Catalog() = default;

  // May be some seconds behind what other nodes have committed, and never behind what this one has.
  virtual absl::StatusOr<Txn> Read() const = 0;
  // Behind nothing that was committed before the call. For whoever destroys what no image needs, and relies
  // on what a lock that he has just got protects.
  virtual absl::StatusOr<Txn> ReadNow() const = 0;
  // Runs `change` in a write transaction and commits it durably when it returns OK; otherwise nothing
  // changes. A full disk is ResourceExhausted; transactions that only take away still go through then. An
  // error says so when it is not known whether the change took effect.
  virtual absl::Status Update(const std::function<absl::Status(Txn&)>& change) = 0;

  // Reads both copies again, every byte of them: one plain sentence for each thing that is wrong.
  virtual std::vector<std::string> Problems() const = 0;
  // Makes two whole copies of what at least one has, or this object, as the next Update would.
  virtual absl::Status Heal() = 0;
};

}  // namespace rekindle::store
