#include "dedup_store/faulty_disk.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"

namespace rekindle::store {

namespace {

constexpr uint64_t kSectorBytes = 512;
constexpr uint64_t kBlockBytes = 4096;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  Log(LogLevel::kError, absl::StrCat("the simulated disk itself failed: ", status.message()));
  abort();
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

absl::StatusOr<std::string> ReadAll(const BlockFile& file) {
  RK_ASSIGN_OR_RETURN(uint64_t size, file.Size());
  std::string content(size, '\0');
  RK_RETURN_IF_ERROR(file.ReadAt(0, {reinterpret_cast<std::byte*>(content.data()), content.size()}));
  return content;
}

absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

absl::string_view FaultName(Fault fault) {
  switch (fault) {
    case Fault::kError:
      return "error";
    case Fault::kShortWrite:
      return "short write";
    case Fault::kDelay:
      return "delay";
    case Fault::kErrorThenPowerLoss:
      return "error, then power loss";
    case Fault::kKill:
      return "kill";
    case Fault::kTears:
      return "torn write";
    case Fault::kLosesAll:
      return "all lost";
    case Fault::kLosesContents:
      return "contents lost";
    case Fault::kLosesNames:
      return "names lost";
    case Fault::kReorders:
      return "reordered";
    case Fault::kScatters:
      return "scattered";
  }
  return "";
}

bool LivesOn(Fault fault) {
  return fault == Fault::kError || fault == Fault::kShortWrite || fault == Fault::kDelay ||
         fault == Fault::kErrorThenPowerLoss;
}

bool KeepsFiles(Fault fault) {
  return fault == Fault::kError || fault == Fault::kShortWrite || fault == Fault::kKill ||
         fault == Fault::kTears;
}

class FaultyQueue : public WriteQueue {
 public:
  FaultyQueue(FaultyDisk* disk, std::shared_ptr<FaultyDisk::Inode> inode, std::string path, size_t buffers,
              std::unique_ptr<WriteQueue> real)
      : disk_(disk),
        inode_(std::move(inode)),
        path_(std::move(path)),
        buffers_(buffers),
        real_(std::move(real)) {}
  ~FaultyQueue() override {
    absl::MutexLock lock(&disk_->mutex_);
    (void)EndDelayed();
  }

  absl::StatusOr<WriteBuffer*> Acquire() override {
    {
      absl::MutexLock lock(&disk_->mutex_);
      RK_RETURN_IF_ERROR(status_);
      if (++acquired_ + (delayed_.buffer != nullptr ? 1 : 0) > buffers_) RK_RETURN_IF_ERROR(EndDelayed());
    }
    return real_->Acquire();
  }

  absl::Status Submit(WriteBuffer* buffer, size_t bytes, uint64_t offset) override {
    absl::MutexLock lock(&disk_->mutex_);
    --acquired_;
    const FaultyDisk::Step step = disk_->TakeLocked(FaultyDisk::Kind::kQueueWrite, "write");
    if (step.hit && step.status.ok()) {
      delayed_ = {buffer, bytes, offset};
      return status_;
    }
    if (step.status.ok()) {
      RK_RETURN_IF_ERROR(Write({buffer, bytes, offset}));
      return status_;
    }
    if (const size_t part = disk_->PartOf(step, offset, bytes); part > 0) {
      const absl::string_view written(reinterpret_cast<const char*>(buffer->data), part);
      disk_->Record(*inode_, {FaultyDisk::Change::kWrite, offset, part, std::string(written)});
      // Through the page cache: a part of a block is no direct write.
      auto file = RealBlockIo()->Open(path_, true);
      Must(file.status());
      Must((*file)->WriteAt(offset, BytesOf(written)));
    }
    RK_RETURN_IF_ERROR(real_->Submit(buffer, 0, offset));  // gives the buffer back
    // As with io_uring, an error shows at what is done next; a short write, as with pwrite, at once.
    status_.Update(step.status);
    return disk_->fault_ == Fault::kError ? absl::OkStatus() : step.status;
  }

  absl::Status Drain() override {
    {
      absl::MutexLock lock(&disk_->mutex_);
      RK_RETURN_IF_ERROR(EndDelayed());
    }
    RK_RETURN_IF_ERROR(real_->Drain());
    RK_RETURN_IF_ERROR(disk_->Take(FaultyDisk::Kind::kOther, "waiting for writes").status);
    absl::MutexLock lock(&disk_->mutex_);
    return status_;
  }

 private:
  struct Job {
    WriteBuffer* buffer = nullptr;
    size_t bytes = 0;
    uint64_t offset = 0;
  };

  absl::Status Write(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_->mutex_) {
    disk_->Record(*inode_, {FaultyDisk::Change::kWrite, job.offset, job.bytes,
                            std::string(reinterpret_cast<const char*>(job.buffer->data), job.bytes)});
    return real_->Submit(job.buffer, job.bytes, job.offset);
  }
  absl::Status EndDelayed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_->mutex_) {
    if (delayed_.buffer == nullptr) return absl::OkStatus();
    return Write(std::exchange(delayed_, {}));
  }

  FaultyDisk* const disk_;
  const std::shared_ptr<FaultyDisk::Inode> inode_;
  const std::string path_;
  const size_t buffers_;
  const std::unique_ptr<WriteQueue> real_;
  size_t acquired_ ABSL_GUARDED_BY(disk_->mutex_) = 0;
  Job delayed_ ABSL_GUARDED_BY(disk_->mutex_);
  absl::Status status_ ABSL_GUARDED_BY(disk_->mutex_);
};

class FaultyFile : public BlockFile {
 public:
  using Kind = FaultyDisk::Kind;
  using Change = FaultyDisk::Change;
  FaultyFile(FaultyDisk* disk, std::shared_ptr<FaultyDisk::Inode> inode, std::unique_ptr<BlockFile> real)
      : disk_(disk), inode_(std::move(inode)), real_(std::move(real)) {}

  const std::string& path() const override { return real_->path(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> out) const override {
    RK_RETURN_IF_ERROR(disk_->Take(Kind::kOther, "read").status);
    return real_->ReadAt(offset, out);
  }
  absl::StatusOr<uint64_t> Size() const override {
    RK_RETURN_IF_ERROR(disk_->Take(Kind::kOther, "size").status);
    return real_->Size();
  }
  absl::StatusOr<uint64_t> AllocatedBytes() const override {
    RK_RETURN_IF_ERROR(disk_->Take(Kind::kOther, "allocated bytes").status);
    return real_->AllocatedBytes();
  }
  absl::StatusOr<std::unique_ptr<FileMapping>> Map(uint64_t offset, uint64_t bytes) const override {
    RK_RETURN_IF_ERROR(disk_->Take(Kind::kOther, "map").status);
    return real_->Map(offset, bytes);
  }
  void WillNeed(uint64_t offset, uint64_t bytes) const override { real_->WillNeed(offset, bytes); }
  absl::StatusOr<bool> Lock(LockMode mode, bool wait) override {
    RK_RETURN_IF_ERROR(disk_->Take(Kind::kOther, "lock").status);
    return real_->Lock(mode, wait);
  }
  absl::StatusOr<bool> IsLinked() const override {
    RK_RETURN_IF_ERROR(disk_->Take(Kind::kOther, "number of links").status);
    return real_->IsLinked();
  }
  absl::Status Revalidate() const override {
    RK_RETURN_IF_ERROR(disk_->Take(Kind::kOther, "revalidation").status);
    return real_->Revalidate();
  }
  absl::StatusOr<std::unique_ptr<WriteQueue>> NewWriteQueue(size_t buffer_bytes, size_t buffers) override {
    RK_RETURN_IF_ERROR(disk_->Take(Kind::kOther, "write queue").status);
    RK_ASSIGN_OR_RETURN(std::unique_ptr<WriteQueue> queue, real_->NewWriteQueue(buffer_bytes, buffers));
    return std::make_unique<FaultyQueue>(disk_, inode_, path(), buffers, std::move(queue));
  }
  absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) override {
    absl::MutexLock lock(&disk_->mutex_);
    const FaultyDisk::Step step = disk_->TakeLocked(Kind::kWrite, "write");
    const size_t part = step.status.ok() ? bytes.size() : disk_->PartOf(step, offset, bytes.size());
    if (part > 0) {
      disk_->Record(*inode_, {Change::kWrite, offset, part,
                              std::string(reinterpret_cast<const char*>(bytes.data()), part)});
      RK_RETURN_IF_ERROR(real_->WriteAt(offset, bytes.first(part)));
    }
    return step.status;
  }
  absl::StatusOr<uint64_t> FreeBytes() const override { return real_->FreeBytes(); }
  bool KeepsAllocated() const override { return real_->KeepsAllocated(); }
  bool GivesBackLate() const override { return real_->GivesBackLate(); }
  absl::Status Allocate(uint64_t offset, uint64_t bytes) override {
    RK_RETURN_IF_ERROR(disk_->Take(Kind::kChange, "allocation").status);
    return real_->Allocate(offset, bytes);
  }
  absl::Status Truncate(uint64_t size) override {
    absl::MutexLock lock(&disk_->mutex_);
    RK_RETURN_IF_ERROR(disk_->TakeLocked(Kind::kChange, "truncation").status);
    disk_->Record(*inode_, {Change::kSize, size, 0, ""});
    return real_->Truncate(size);
  }
  absl::Status PunchHole(uint64_t offset, uint64_t bytes) override {
    absl::MutexLock lock(&disk_->mutex_);
    RK_RETURN_IF_ERROR(disk_->TakeLocked(Kind::kChange, "hole").status);
    disk_->Record(*inode_, {Change::kZeros, offset, bytes, ""});
    return real_->PunchHole(offset, bytes);
  }
  absl::Status Sync() override { return disk_->SyncFile(*inode_, *real_); }

 private:
  FaultyDisk* const disk_;
  const std::shared_ptr<FaultyDisk::Inode> inode_;
  const std::unique_ptr<BlockFile> real_;
};

bool FaultyDisk::Applies(Kind kind) const {
  switch (fault_) {
    case Fault::kError:
      return true;
    case Fault::kDelay:
      return kind == Kind::kQueueWrite;
    case Fault::kShortWrite:
    case Fault::kTears:
      return kind == Kind::kWrite || kind == Kind::kQueueWrite;
    default:
      return kind != Kind::kOther;
  }
}

FaultyDisk::Step FaultyDisk::Take(Kind kind, absl::string_view what) {
  absl::MutexLock lock(&mutex_);
  return TakeLocked(kind, what);
}

FaultyDisk::Step FaultyDisk::TakeLocked(Kind kind, absl::string_view what) {
  Step step;
  if (!off_ && Applies(kind) && (!watched_ || *watched_ == std::this_thread::get_id())) {
    step.hit = ++operations_ == fail_at_;
  }
  off_ = off_ || (step.hit && !LivesOn(fault_));
  if (off_ || (step.hit && fault_ != Fault::kDelay)) {
    step.status = absl::InternalError(absl::StrCat("injected: ", what));
  }
  return step;
}

size_t FaultyDisk::PartOf(const Step& step, uint64_t offset, size_t bytes) const {
  if (!step.hit) return 0;
  if (fault_ == Fault::kShortWrite) return bytes / 2;
  if (fault_ != Fault::kTears) return 0;
  const uint64_t end = (offset + bytes / 2) / kSectorBytes * kSectorBytes;
  return end > offset ? end - offset : 0;
}

void FaultyDisk::WatchThisThread() {
  absl::MutexLock lock(&mutex_);
  watched_ = std::this_thread::get_id();
}

int FaultyDisk::operations() const {
  absl::MutexLock lock(&mutex_);
  return operations_;
}

void FaultyDisk::Record(Inode& inode, Change change) {
  if (KeepsFiles(fault_)) return;  // nothing will be lost
  if (!inode.synced) {
    auto content = ReadAll(*inode.view);
    Must(content.status());
    inode.synced = *std::move(content);
  }
  change.order = ++changes_;
  inode.changes.push_back(std::move(change));
}

namespace {

void Put(std::string& content, uint64_t offset, absl::string_view bytes) {
  if (content.size() < offset + bytes.size()) content.resize(offset + bytes.size(), '\0');
  content.replace(offset, bytes.size(), bytes.data(), bytes.size());
}

// `change` is a FaultyDisk::Change.
template <typename Change>
void Apply(std::string& content, const Change& change) {
  switch (change.type) {
    case Change::kWrite:
      Put(content, change.offset, change.bytes);
      break;
    case Change::kSize:
      content.resize(change.offset, '\0');
      break;
    case Change::kZeros:
      if (change.offset < content.size()) {
        const uint64_t length = std::min<uint64_t>(change.length, content.size() - change.offset);
        memset(content.data() + change.offset, 0, length);
      }
      break;
  }
}

}  // namespace

absl::Status FaultyDisk::SyncFile(Inode& inode, BlockFile& real) {
  absl::MutexLock lock(&mutex_);
  const Step step = TakeLocked(Kind::kSync, "sync");
  if (!step.status.ok()) {
    // Linux takes what it could not write for written; the next sync succeeds without it.
    if (step.hit && fault_ == Fault::kErrorThenPowerLoss && !inode.changes.empty()) {
      inode.diverged = true;
      inode.changes.clear();
    }
    return step.status;
  }
  if (inode.diverged) {
    for (const Change& change : inode.changes) Apply(*inode.synced, change);
  } else {
    inode.synced.reset();
  }
  inode.changes.clear();
  return real.Sync();
}

absl::StatusOr<FaultyDisk::InodePtr> FaultyDisk::InodeAt(const std::string& path) {
  auto [it, inserted] = names_.try_emplace(path);
  if (inserted && PathExists(path)) {
    auto inode = std::make_shared<Inode>();
    RK_ASSIGN_OR_RETURN(inode->view, RealBlockIo()->Open(path, false));
    it->second = std::move(inode);
  }
  return it->second;
}

absl::StatusOr<std::unique_ptr<BlockFile>> FaultyDisk::Make(const std::string& path, bool direct) {
  absl::MutexLock lock(&mutex_);
  RK_RETURN_IF_ERROR(TakeLocked(Kind::kChange, "create").status);
  RK_RETURN_IF_ERROR(InodeAt(path).status());
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file,
                      direct ? RealBlockIo()->Create(path) : RealBlockIo()->CreateBuffered(path));
  auto inode = std::make_shared<Inode>();
  RK_ASSIGN_OR_RETURN(inode->view, RealBlockIo()->Open(path, false));
  inode->synced.emplace();
  RecordName({FolderOf(path), "", path, inode});
  return std::make_unique<FaultyFile>(this, std::move(inode), std::move(file));
}

absl::StatusOr<std::unique_ptr<BlockFile>> FaultyDisk::Create(const std::string& path) {
  return Make(path, true);
}

absl::StatusOr<std::unique_ptr<BlockFile>> FaultyDisk::CreateBuffered(const std::string& path) {
  return Make(path, false);
}

absl::StatusOr<std::unique_ptr<BlockFile>> FaultyDisk::Open(const std::string& path, bool writable) {
  absl::MutexLock lock(&mutex_);
  RK_RETURN_IF_ERROR(TakeLocked(Kind::kOther, "open").status);
  RK_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, RealBlockIo()->Open(path, writable));
  RK_ASSIGN_OR_RETURN(InodePtr inode, InodeAt(path));
  return std::make_unique<FaultyFile>(this, std::move(inode), std::move(file));
}

void FaultyDisk::RecordName(NameChange change) {
  for (const std::string* name : {&change.from, &change.to}) {
    if (name->empty()) continue;
    synced_names_.try_emplace(*name, names_[*name]);
    names_[*name] = name == &change.to ? change.inode : nullptr;
  }
  name_changes_.push_back(std::move(change));
}

absl::Status FaultyDisk::Rename(const std::string& from, const std::string& to) {
  absl::MutexLock lock(&mutex_);
  RK_RETURN_IF_ERROR(TakeLocked(Kind::kChange, "rename").status);
  RK_ASSIGN_OR_RETURN(InodePtr inode, InodeAt(from));
  RK_RETURN_IF_ERROR(InodeAt(to).status());
  RK_RETURN_IF_ERROR(RealBlockIo()->Rename(from, to));
  RecordName({FolderOf(to), from, to, std::move(inode)});
  return absl::OkStatus();
}

absl::Status FaultyDisk::Unlink(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  RK_RETURN_IF_ERROR(TakeLocked(Kind::kChange, "unlink").status);
  RK_ASSIGN_OR_RETURN(InodePtr inode, InodeAt(path));
  if (inode == nullptr) return absl::OkStatus();
  RK_RETURN_IF_ERROR(RealBlockIo()->Unlink(path));
  RecordName({FolderOf(path), path, "", std::move(inode)});
  return absl::OkStatus();
}

absl::Status FaultyDisk::SyncDirectory(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  RK_RETURN_IF_ERROR(TakeLocked(Kind::kSync, "sync of a folder").status);
  std::vector<NameChange> left;
  for (NameChange& change : name_changes_) {
    if (change.folder != path) {
      left.push_back(std::move(change));
      continue;
    }
    for (const std::string* name : {&change.from, &change.to}) {
      if (name->empty()) continue;
      synced_names_[*name] = name == &change.to ? change.inode : nullptr;
      // What was done to the name before is settled by this, whatever folder the other one is in.
      std::erase_if(left, [&](const NameChange& c) { return c.from == *name || c.to == *name; });
    }
  }
  name_changes_ = std::move(left);
  return RealBlockIo()->SyncDirectory(path);
}

absl::Status FaultyDisk::BeforeCatalogCommit(absl::string_view what) {
  return Take(Kind::kOther, what).status;
}

namespace {

// Whether number `i` of `n` things that were not synced is found after the loss.
bool Survives(Fault fault, size_t i, size_t n) {
  if (fault == Fault::kReorders) return i >= n / 2;
  if (fault == Fault::kScatters) return i % 2 == 1;
  return false;
}

}  // namespace

void FaultyDisk::LoseContents() {
  std::set<InodePtr> inodes;
  for (const auto& [path, inode] : names_) inodes.insert(inode);
  for (const auto& [path, inode] : synced_names_) inodes.insert(inode);
  for (const NameChange& change : name_changes_) inodes.insert(change.inode);
  inodes.erase(nullptr);
  if (fault_ == Fault::kLosesNames) {
    for (const InodePtr& inode : inodes) inode->synced.reset();
    return;
  }
  std::map<std::pair<uint64_t, uint64_t>, Piece> pieces;  // by order and offset
  for (const InodePtr& inode : inodes) {
    for (const Change& change : inode->changes) {
      if (change.type == Change::kSize) pieces[{change.order, change.offset}] = {inode.get(), change};
      for (uint64_t at = change.offset; at < change.offset + change.length;) {
        const uint64_t end = std::min(change.offset + change.length, (at / kBlockBytes + 1) * kBlockBytes);
        Piece piece{inode.get(), {change.type, at, end - at, ""}};
        if (change.type == Change::kWrite)
          piece.change.bytes = change.bytes.substr(at - change.offset, end - at);
        pieces[{change.order, at}] = std::move(piece);
        at = end;
      }
    }
  }
  size_t i = 0;
  for (auto& [order, piece] : pieces) {
    if (Survives(fault_, i++, pieces.size())) Apply(*piece.inode->synced, piece.change);
  }
}

std::map<std::string, FaultyDisk::InodePtr> FaultyDisk::NamesAfterLoss() {
  std::map<std::string, InodePtr> names = names_;
  if (fault_ == Fault::kLosesContents) return names;
  for (const auto& [path, inode] : synced_names_) names[path] = inode;
  for (size_t i = 0; i < name_changes_.size(); ++i) {
    if (!Survives(fault_, i, name_changes_.size())) continue;
    const NameChange& change = name_changes_[i];
    if (!change.from.empty()) names[change.from] = nullptr;
    if (!change.to.empty()) names[change.to] = change.inode;
  }
  return names;
}

void FaultyDisk::PowerUp() {
  absl::MutexLock lock(&mutex_);
  off_ = false;
  if (KeepsFiles(fault_)) return;
  LoseContents();
  const std::map<std::string, InodePtr> names = NamesAfterLoss();
  std::map<std::string, std::string> contents;
  for (const auto& [path, inode] : names) {
    const InodePtr& now = names_[path];
    if (inode == nullptr) {
      if (now != nullptr) Must(RealBlockIo()->Unlink(path));
      continue;
    }
    if (inode == now && !inode->synced) continue;
    if (inode->synced) {
      contents[path] = *inode->synced;
    } else {
      auto content = ReadAll(*inode->view);
      Must(content.status());
      contents[path] = *std::move(content);
    }
  }
  // New files: who has the old ones open or mapped keeps them.
  for (const auto& [path, content] : contents) {
    Must(RealBlockIo()->Unlink(path));
    auto file = RealBlockIo()->CreateBuffered(path);
    Must(file.status());
    Must((*file)->WriteAt(0, BytesOf(content)));
  }
  names_.clear();
  synced_names_.clear();
  name_changes_.clear();
}

}  // namespace rekindle::store
