#include "dedup_store/catalog.h"

#include <fcntl.h>
#include <lmdb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "dedup_store/coding.h"
#include "dedup_store/write_queue.h"

namespace rekindle::store {

namespace {

// Address space, not memory or disk: the file is as long as what is in it. Grown when it is full.
constexpr size_t kFirstMapBytes = size_t{1} << 30;
constexpr unsigned kMaxReaders = 1024;

struct Tables {
  MDB_dbi images, refs, digests, packs, dead, indexes;
};

absl::Status LmdbError(int error, absl::string_view what, const std::string& path) {
  if (error > 0) return FileError(error, what, path, -1);
  if (error == MDB_CORRUPTED || error == MDB_PAGE_NOTFOUND || error == MDB_INVALID) {
    return absl::DataLossError(
        absl::StrCat(what, " ", path, ": the catalog is damaged (", mdb_strerror(error), ")"));
  }
  return absl::InternalError(absl::StrCat(what, " ", path, ": ", mdb_strerror(error)));
}

std::string Key(uint64_t id) {
  std::string key(8, '\0');
  for (int i = 0; i < 8; ++i) key[i] = static_cast<char>(id >> (56 - 8 * i));
  return key;
}

uint64_t IdOfKey(absl::string_view key) {
  uint64_t id = 0;
  for (size_t i = 0; i < 8 && i < key.size(); ++i) id = id << 8 | static_cast<uint8_t>(key[i]);
  return id;
}

absl::string_view View(const MDB_val& v) { return {static_cast<const char*>(v.mv_data), v.mv_size}; }
MDB_val Val(absl::string_view s) { return {s.size(), const_cast<char*>(s.data())}; }

std::string DigestKey(const ImageRecord& record) {
  absl::string_view hex = record.info.digest;
  absl::ConsumePrefix(&hex, "sha256:");
  return BytesOfHex(hex) + Key(record.id);
}

}  // namespace

struct Catalog::Txn::State {
  MDB_txn* txn = nullptr;
  const Tables* tables = nullptr;
  const std::string* path = nullptr;
  std::shared_lock<std::shared_mutex> resize_lock;
  int raw_error = 0;  // the last one of LMDB, for Update to see a full map

  ~State() {
    if (txn != nullptr) mdb_txn_abort(txn);
  }
  absl::Status Error(int error, absl::string_view what) {
    raw_error = error;
    return LmdbError(error, what, *path);
  }
  absl::StatusOr<std::optional<std::string>> Get(MDB_dbi table, absl::string_view key) {
    MDB_val k = Val(key), v;
    int error = mdb_get(txn, table, &k, &v);
    if (error == MDB_NOTFOUND) return std::optional<std::string>();
    if (error != 0) return Error(error, "reading");
    return std::optional<std::string>(std::string(View(v)));
  }
  absl::Status Put(MDB_dbi table, absl::string_view key, absl::string_view value) {
    MDB_val k = Val(key), v = Val(value);
    int error = mdb_put(txn, table, &k, &v, 0);
    return error == 0 ? absl::OkStatus() : Error(error, "writing");
  }
  absl::Status Delete(MDB_dbi table, absl::string_view key) {
    MDB_val k = Val(key);
    int error = mdb_del(txn, table, &k, nullptr);
    return error == 0 || error == MDB_NOTFOUND ? absl::OkStatus() : Error(error, "writing");
  }
  // From the first key that is not below `from` on, while `each` returns true.
  absl::Status Scan(MDB_dbi table, absl::string_view from,
                    const std::function<absl::StatusOr<bool>(absl::string_view, absl::string_view)>& each) {
    MDB_cursor* cursor = nullptr;
    int error = mdb_cursor_open(txn, table, &cursor);
    if (error != 0) return Error(error, "reading");
    auto close = std::unique_ptr<MDB_cursor, void (*)(MDB_cursor*)>(cursor, mdb_cursor_close);
    MDB_val k = Val(from), v;
    error = mdb_cursor_get(cursor, &k, &v, from.empty() ? MDB_FIRST : MDB_SET_RANGE);
    while (error == 0) {
      RK_ASSIGN_OR_RETURN(bool more, each(View(k), View(v)));
      if (!more) return absl::OkStatus();
      error = mdb_cursor_get(cursor, &k, &v, MDB_NEXT);
    }
    return error == MDB_NOTFOUND ? absl::OkStatus() : Error(error, "reading");
  }
};

Catalog::Txn::Txn(std::unique_ptr<State> state) : state_(std::move(state)) {}
Catalog::Txn::Txn(Txn&& other) noexcept = default;
Catalog::Txn::~Txn() = default;

absl::StatusOr<std::vector<ImageRecord>> Catalog::Txn::Images() { return ImagesAfter(0); }

absl::StatusOr<std::vector<ImageRecord>> Catalog::Txn::ImagesAfter(uint64_t id) {
  std::vector<ImageRecord> records;
  RK_RETURN_IF_ERROR(state_->Scan(state_->tables->images, Key(id + 1),
                                  [&](absl::string_view, absl::string_view value) -> absl::StatusOr<bool> {
                                    RK_ASSIGN_OR_RETURN(ImageRecord record, ImageRecord::Decode(value));
                                    records.push_back(std::move(record));
                                    return true;
                                  }));
  return records;
}

absl::StatusOr<std::optional<ImageRecord>> Catalog::Txn::FindImage(uint64_t id) {
  RK_ASSIGN_OR_RETURN(auto value, state_->Get(state_->tables->images, Key(id)));
  if (!value) return std::optional<ImageRecord>();
  RK_ASSIGN_OR_RETURN(ImageRecord record, ImageRecord::Decode(*value));
  return std::optional<ImageRecord>(std::move(record));
}

absl::StatusOr<std::optional<ImageRecord>> Catalog::Txn::FindReference(absl::string_view reference) {
  RK_ASSIGN_OR_RETURN(auto value, state_->Get(state_->tables->refs, reference));
  if (!value) return std::optional<ImageRecord>();
  return FindImage(IdOfKey(*value));
}

absl::StatusOr<std::vector<ImageRecord>> Catalog::Txn::FindDigest(absl::string_view hex_prefix) {
  std::string first = BytesOfHex(absl::StrCat(hex_prefix, hex_prefix.size() % 2 ? "0" : ""));
  std::vector<ImageRecord> records;
  RK_RETURN_IF_ERROR(state_->Scan(state_->tables->digests, first,
                                  [&](absl::string_view key, absl::string_view) -> absl::StatusOr<bool> {
                                    if (key.size() != 40)
                                      return absl::DataLossError("the catalog is damaged");
                                    if (!absl::StartsWith(absl::BytesToHexString(key), hex_prefix))
                                      return false;
                                    RK_ASSIGN_OR_RETURN(auto record, FindImage(IdOfKey(key.substr(32))));
                                    if (record) records.push_back(*std::move(record));
                                    return true;
                                  }));
  return records;
}

absl::StatusOr<uint64_t> Catalog::Txn::NextImageId() {
  // Kept beside the references: no reference can be empty, so "\x01next" is free.
  RK_ASSIGN_OR_RETURN(auto value, state_->Get(state_->tables->refs, "\x01next"));
  uint64_t id = value ? IdOfKey(*value) : 1;
  RK_RETURN_IF_ERROR(state_->Put(state_->tables->refs, "\x01next", Key(id + 1)));
  return id;
}

absl::Status Catalog::Txn::PutImage(const ImageRecord& record) {
  RK_RETURN_IF_ERROR(state_->Put(state_->tables->images, Key(record.id), record.Encode()));
  RK_RETURN_IF_ERROR(state_->Put(state_->tables->refs, record.info.reference, Key(record.id)));
  return state_->Put(state_->tables->digests, DigestKey(record), "");
}

absl::Status Catalog::Txn::DeleteImage(const ImageRecord& record) {
  RK_RETURN_IF_ERROR(state_->Delete(state_->tables->images, Key(record.id)));
  RK_RETURN_IF_ERROR(state_->Delete(state_->tables->refs, record.info.reference));
  return state_->Delete(state_->tables->digests, DigestKey(record));
}

namespace {

std::string EncodePack(const PackRecord& r) {
  Encoder e;
  e.U64(r.file_bytes);
  e.U64(r.stored_bytes);
  e.U32(r.frames);
  e.U32(r.pages);
  e.U64(r.index_id);
  return e.Take();
}

absl::StatusOr<PackRecord> DecodePack(uint64_t id, absl::string_view bytes) {
  Decoder in(bytes);
  PackRecord r;
  r.id = id;
  r.file_bytes = in.U64();
  r.stored_bytes = in.U64();
  r.frames = in.U32();
  r.pages = in.U32();
  r.index_id = in.U64();
  if (!in.AtEnd()) return absl::DataLossError("a pack's record in the catalog is damaged");
  return r;
}

}  // namespace

absl::StatusOr<std::vector<PackRecord>> Catalog::Txn::Packs() {
  std::vector<PackRecord> records;
  RK_RETURN_IF_ERROR(state_->Scan(
      state_->tables->packs, "", [&](absl::string_view key, absl::string_view value) -> absl::StatusOr<bool> {
        RK_ASSIGN_OR_RETURN(PackRecord record, DecodePack(IdOfKey(key), value));
        records.push_back(record);
        return true;
      }));
  return records;
}

absl::StatusOr<std::optional<PackRecord>> Catalog::Txn::FindPack(uint64_t id) {
  RK_ASSIGN_OR_RETURN(auto value, state_->Get(state_->tables->packs, Key(id)));
  if (!value) return std::optional<PackRecord>();
  RK_ASSIGN_OR_RETURN(PackRecord record, DecodePack(id, *value));
  return std::optional<PackRecord>(record);
}

absl::Status Catalog::Txn::PutPack(const PackRecord& record) {
  return state_->Put(state_->tables->packs, Key(record.id), EncodePack(record));
}

absl::Status Catalog::Txn::DeletePack(uint64_t id) {
  RK_RETURN_IF_ERROR(state_->Delete(state_->tables->packs, Key(id)));
  return state_->Delete(state_->tables->dead, Key(id));
}

absl::StatusOr<std::optional<DeadRecord>> Catalog::Txn::FindDead(uint64_t pack_id) {
  RK_ASSIGN_OR_RETURN(auto value, state_->Get(state_->tables->dead, Key(pack_id)));
  if (!value) return std::optional<DeadRecord>();
  Decoder in(*value);
  DeadRecord record;
  record.given_back = in.U8() != 0;
  uint64_t bits = in.Varint();
  std::string bytes = in.String();
  if (!in.AtEnd() || bytes.size() != (bits + 7) / 8) {
    return absl::DataLossError("a pack's list of dead frames in the catalog is damaged");
  }
  record.dead.resize(bits);
  for (uint64_t i = 0; i < bits; ++i) record.dead[i] = (bytes[i / 8] >> (i % 8)) & 1;
  return std::optional<DeadRecord>(std::move(record));
}

absl::Status Catalog::Txn::PutDead(uint64_t pack_id, const DeadRecord& record) {
  std::string bytes((record.dead.size() + 7) / 8, '\0');
  for (size_t i = 0; i < record.dead.size(); ++i) {
    if (record.dead[i]) bytes[i / 8] = static_cast<char>(bytes[i / 8] | 1 << (i % 8));
  }
  Encoder e;
  e.U8(record.given_back ? 1 : 0);
  e.Varint(record.dead.size());
  e.String(bytes);
  return state_->Put(state_->tables->dead, Key(pack_id), e.out());
}

absl::StatusOr<std::vector<IndexRecord>> Catalog::Txn::Indexes() {
  std::vector<IndexRecord> records;
  RK_RETURN_IF_ERROR(
      state_->Scan(state_->tables->indexes, "",
                   [&](absl::string_view key, absl::string_view value) -> absl::StatusOr<bool> {
                     Decoder in(value);
                     IndexRecord record;
                     record.id = IdOfKey(key);
                     record.entries = in.U64();
                     record.file_bytes = in.U64();
                     if (!in.AtEnd()) return absl::DataLossError("an index record is damaged");
                     records.push_back(record);
                     return true;
                   }));
  return records;
}

absl::Status Catalog::Txn::PutIndex(const IndexRecord& record) {
  Encoder e;
  e.U64(record.entries);
  e.U64(record.file_bytes);
  return state_->Put(state_->tables->indexes, Key(record.id), e.out());
}

absl::Status Catalog::Txn::DeleteIndex(uint64_t id) {
  return state_->Delete(state_->tables->indexes, Key(id));
}

uint64_t Catalog::Txn::bytes_used() {
  MDB_envinfo info;
  MDB_stat stat;
  MDB_env* env = mdb_txn_env(state_->txn);
  if (mdb_env_info(env, &info) != 0 || mdb_env_stat(env, &stat) != 0) return 0;
  return (info.me_last_pgno + 1) * uint64_t{stat.ms_psize};
}

namespace {

class LmdbCatalog : public Catalog {
 public:
  ~LmdbCatalog() override {
    if (env_ != nullptr) mdb_env_close(env_);
  }

  absl::Status Init(const std::string& path, bool read_only) {
    path_ = path;
    size_t map_bytes = kFirstMapBytes;
    // Readers register in the lock file, so a read-only store too opens it for writing where that is allowed.
    unsigned flags = MDB_NOTLS;
    for (;;) {
      int error = mdb_env_create(&env_);
      if (error != 0) return LmdbError(error, "opening", path);
      mdb_env_set_maxdbs(env_, 8);
      mdb_env_set_maxreaders(env_, kMaxReaders);
      mdb_env_set_mapsize(env_, map_bytes);
      error = mdb_env_open(env_, path.c_str(), flags, 0600);
      if (error == 0) break;
      mdb_env_close(env_);
      env_ = nullptr;
      if (error == ENOMEM && map_bytes > (size_t{1} << 24)) {
        map_bytes /= 4;  // little address space, as under a limit
      } else if ((error == EROFS || error == EACCES) && read_only && !(flags & MDB_NOLOCK)) {
        flags |= MDB_RDONLY | MDB_NOLOCK;  // nobody here can write, so there is nothing to lock
      } else {
        return LmdbError(error, "opening", path);
      }
    }
    int dead = 0;
    if (!read_only) (void)mdb_reader_check(env_, &dead);
    return OpenTables(read_only);
  }

  absl::StatusOr<Txn> Read() const override {
    for (;;) {
      std::shared_lock<std::shared_mutex> lock(resize_mutex_);
      auto state = std::make_unique<Txn::State>();
      int error = mdb_txn_begin(env_, nullptr, MDB_RDONLY, &state->txn);
      if (error == MDB_MAP_RESIZED) {
        lock.unlock();
        RK_RETURN_IF_ERROR(AdoptSize());
        continue;
      }
      if (error != 0) return LmdbError(error, "reading", path_);
      state->tables = &tables_;
      state->path = &path_;
      state->resize_lock = std::move(lock);
      return Txn(std::move(state));
    }
  }

  absl::Status Update(const std::function<absl::Status(Txn&)>& change) override {
    for (;;) {
      std::shared_lock<std::shared_mutex> lock(resize_mutex_);
      auto state = std::make_unique<Txn::State>();
      int error = mdb_txn_begin(env_, nullptr, 0, &state->txn);
      absl::Status status;
      if (error == 0) {
        state->tables = &tables_;
        state->path = &path_;
        Txn::State* raw = state.get();
        Txn txn(std::move(state));
        status = change(txn);
        error = raw->raw_error;
        if (status.ok()) {
          error = mdb_txn_commit(std::exchange(raw->txn, nullptr));
          if (error != 0) status = LmdbError(error, "writing", path_);
        }
      } else {
        status = LmdbError(error, "writing", path_);
      }
      lock.unlock();
      if (error == MDB_MAP_FULL) {
        RK_RETURN_IF_ERROR(Grow());
      } else if (error == MDB_MAP_RESIZED) {
        RK_RETURN_IF_ERROR(AdoptSize());
      } else {
        return status;
      }
    }
  }

 private:
  absl::Status OpenTables(bool read_only) {
    MDB_txn* txn = nullptr;
    int error = mdb_txn_begin(env_, nullptr, MDB_RDONLY, &txn);
    if (error == MDB_MAP_RESIZED) {
      mdb_env_set_mapsize(env_, 0);
      error = mdb_txn_begin(env_, nullptr, MDB_RDONLY, &txn);
    }
    if (error != 0) return LmdbError(error, "opening", path_);
    error = OpenAll(txn, 0);
    if (error == MDB_NOTFOUND && !read_only) {
      mdb_txn_abort(txn);
      if ((error = mdb_txn_begin(env_, nullptr, 0, &txn)) != 0) return LmdbError(error, "making", path_);
      error = OpenAll(txn, MDB_CREATE);
    }
    if (error != 0) {
      mdb_txn_abort(txn);
      return LmdbError(error, "opening", path_);
    }
    error = mdb_txn_commit(txn);
    return error == 0 ? absl::OkStatus() : LmdbError(error, "opening", path_);
  }

  int OpenAll(MDB_txn* txn, unsigned flags) {
    const std::pair<const char*, MDB_dbi*> names[] = {
        {"images", &tables_.images}, {"refs", &tables_.refs}, {"digests", &tables_.digests},
        {"packs", &tables_.packs},   {"dead", &tables_.dead}, {"indexes", &tables_.indexes}};
    for (const auto& [name, dbi] : names) {
      if (int error = mdb_dbi_open(txn, name, flags, dbi); error != 0) return error;
    }
    return 0;
  }

  // The map may change its size only while no transaction of this process is open.
  absl::Status Grow() {
    std::unique_lock<std::shared_mutex> lock(resize_mutex_);
    MDB_envinfo info;
    mdb_env_info(env_, &info);
    int error = mdb_env_set_mapsize(env_, info.me_mapsize * 2);
    return error == 0 ? absl::OkStatus() : LmdbError(error, "enlarging the map of", path_);
  }
  absl::Status AdoptSize() const {
    std::unique_lock<std::shared_mutex> lock(resize_mutex_);
    int error = mdb_env_set_mapsize(env_, 0);
    return error == 0 ? absl::OkStatus() : LmdbError(error, "enlarging the map of", path_);
  }

  std::string path_;
  MDB_env* env_ = nullptr;
  Tables tables_{};
  mutable std::shared_mutex resize_mutex_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Catalog>> Catalog::Open(const std::string& path, bool read_only) {
  static absl::Mutex mutex(absl::kConstInit);
  static auto* const opened = new std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Catalog>>;
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  absl::MutexLock lock(&mutex);
  std::weak_ptr<Catalog>& known = (*opened)[{st.st_dev, st.st_ino}];
  if (auto catalog = known.lock()) return catalog;
  auto catalog = std::make_shared<LmdbCatalog>();
  RK_RETURN_IF_ERROR(catalog->Init(path, read_only));
  known = catalog;
  return std::shared_ptr<Catalog>(catalog);
}

}  // namespace rekindle::store
