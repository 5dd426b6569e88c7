#include "restore/pager.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/packet_socket.h"
#include "base/status.h"
#include "base/status_json.h"
#include "base/timed_await.h"
#include "dedup_store/freed_frames.h"
#include "restore/descriptor_share.h"
#include "restore/lazy_clone.h"
#include "restore/pager_name.h"
#include "restore/pager_protocol.h"

namespace rekindle::restore {
namespace {

using Json = nlohmann::json;

// Images kept open beyond those in use: parsing one anew costs milliseconds.
constexpr size_t kMostImages = 64;
constexpr absl::Duration kSaveHotList = absl::Minutes(1);
constexpr uint64_t kNoSource = 0;

// What the cache can ever be made to hold.
uint64_t MachineMemory() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// A connection of Rekindle's.
class Client : public PagerSource, public std::enable_shared_from_this<Client> {
 public:
  // The caller has counted it.
  Client(Pager& pager, UniqueFd socket) : pager_(pager), socket_(std::move(socket)) {}
  ~Client() override { pager_.ClientsChanged(-1); }
  int fd() const override { return socket_.get(); }
  bool takes_long() const override { return true; }

  Next OnReady() override {
    auto packet = ReceivePacket(socket_.get(), MSG_DONTWAIT);
    if (absl::IsUnavailable(packet.status())) return Next::kAgain;
    if (packet.ok() && !packet->has_value()) return Next::kDone;
    if (!packet.ok()) return Say(packet.status(), absl::IsResourceExhausted(packet.status()), {});
    auto request = std::make_shared<Request>();
    request->json = Json::parse((*packet)->bytes, nullptr, /*allow_exceptions=*/false);
    request->descriptors = std::move((*packet)->descriptors);
    const std::optional<uid_t> filled_for = OwnerOfFill(request->json);
    if (!filled_for) return Do(*request);
    // What others ask, and who comes anew, waits for no fill.
    pager_.LeaveToFillers(*filled_for, [self = shared_from_this(), request] {
      self->pager_.Resume(*self, self->Do(*request));
    });
    return Next::kHeld;
  }

 private:
  struct Request {
    Json json;
    std::vector<UniqueFd> descriptors;
  };

  // Whose copy is filled; nothing: it does not last as long as that.
  std::optional<uid_t> OwnerOfFill(const Json& request) {
    if (!request.is_object()) return std::nullopt;
    const auto what = request.find("do"), name = request.find("clone");
    if (what == request.end() || name == request.end() || !name->is_string()) return std::nullopt;
    const bool all = *what == "fill";
    if (!all && *what != "prefill") return std::nullopt;
    auto clone = pager_.FindClone(*name);
    if (!clone.ok() || (!all && (*clone)->fill() != Fill::kEager)) return std::nullopt;
    return (*clone)->image().reader().info().owner;
  }

  Next Do(Request& request) {
    Json answer = Json::object();
    absl::Status status;
    try {
      status = Handle(request.json, request.descriptors, &answer);
    } catch (const Json::exception& e) {
      status = absl::InvalidArgumentError(absl::StrCat("a request to the pager makes no sense: ", e.what()));
    }
    request.descriptors.clear();
    return Say(
        status,
        absl::IsResourceExhausted(status) && absl::StrContains(status.message(), std::strerror(EMFILE)),
        std::move(answer));
  }

  // `no_descriptors`: what came with it did not fit, or what it needs beyond that. It is closed again by now.
  Next Say(absl::Status status, bool no_descriptors, Json answer) {
    if (no_descriptors)
      status = absl::ResourceExhaustedError(absl::StrCat(kNoDescriptors, ": ", status.message()));
    if (!status.ok()) {
      answer = Json::object();
      PutStatus(status, &answer);
    }
    return AgainIf(
        SendPacket(socket_.get(), answer.dump(-1, ' ', false, Json::error_handler_t::replace)).ok());
  }

  absl::Status Handle(const Json& request, std::vector<UniqueFd>& descriptors, Json* answer) {
    const std::string what = request.at("do");
    if (what == "attach") return Attach(request, descriptors, answer);
    if (what == "stats") {
      *answer = Json::parse(pager_.Stats(request.value("clones", true)));
      return absl::OkStatus();
    }
    if (what == "expect") {
      pager_.Expect(request.at("image"));
      return absl::OkStatus();
    }
    if (what == "forget") {
      RK_ASSIGN_OR_RETURN(bool dropped, pager_.DropWorkingSet(request.at("image")));
      *answer = {{"dropped", dropped}};
      return absl::OkStatus();
    }
    if (what == "tidy") {
      pager_.ForgetRemovedImages();
      if (request.value("collected", true)) pager_.DiscardFreedFrames();
      return absl::OkStatus();
    }
    if (what == "resize") {
      RK_RETURN_IF_ERROR(pager_.cache().SetBudget(request.at("cache_bytes")));
      *answer = {{"cache_bytes", pager_.cache().Stats().budget_bytes}};
      return absl::OkStatus();
    }
    if (what == "processes") return TakeProcesses(request, descriptors);
    if (what == "timeline") {
      if (!followed_) return absl::FailedPreconditionError("no timeline was asked for");
      const bool final = followed_->HasRun();  // before it is looked at
      *answer = Json::parse(followed_->EncodeTimeline());
      (*answer)["final"] = final;
      return absl::OkStatus();
    }
    RK_ASSIGN_OR_RETURN(std::shared_ptr<LazyClone> clone, pager_.FindClone(request.at("clone")));
    if (what == "prefill") {
      Stopwatch watch;
      RK_RETURN_IF_ERROR(TakeProcesses(request, descriptors));
      absl::StatusOr<uint64_t> prefilled = clone->Prefill(std::exchange(processes_, {}));
      clone->PrefillDone();
      pager_.NoteStart();
      RK_ASSIGN_OR_RETURN(uint64_t pages, std::move(prefilled));
      *answer = {
          {"pages", pages}, {"settled_bytes", clone->image().prefill_bytes()}, {"seconds", watch.seconds()}};
    } else if (what == "ready") {
      pager_.NoteStart();
      clone->Ready(RecordingEnd::kReady);
    } else if (what == "fill") {
      clone->Ready(RecordingEnd::kEnded);
      RK_RETURN_IF_ERROR(clone->FillAll().status());
      *answer = {{"complete", clone->AwaitComplete()}};
    } else {
      return absl::UnimplementedError(absl::StrCat("the pager does not know '", what, "'"));
    }
    return absl::OkStatus();
  }

  absl::Status TakeProcesses(const Json& request, std::vector<UniqueFd>& descriptors) {
    const std::vector<pid_t> pids = request.at("pids");
    if (pids.size() != descriptors.size()) return absl::InvalidArgumentError("each process needs its pidfd");
    for (size_t i = 0; i < pids.size(); ++i) processes_[pids[i]] = std::move(descriptors[i]);
    return absl::OkStatus();
  }

  absl::Status Attach(const Json& request, std::vector<UniqueFd>& descriptors, Json* answer) {
    if (descriptors.size() != 2 && descriptors.size() != 3)
      return absl::InvalidArgumentError("attaching to the pager: sockets are missing");
    LazyCloneOptions options;
    options.id = request.at("clone");
    const std::string name = request.at("fill");
    const std::optional<Fill> fill = FillNamed(name);
    if (!fill) return absl::InvalidArgumentError(absl::StrCat("the pager knows no fill '", name, "'"));
    options.fill = *fill;
    const int64_t record_ms = request.at("record_ms");
    options.record = absl::Milliseconds(record_ms);
    options.until_answer = request.value("until_answer", false);
    options.until_ready = request.value("until_ready", false);
    options.timeline = request.value("timeline", false);
    if (descriptors.size() == 3) options.room = std::make_shared<const MemoryRoom>(std::move(descriptors[2]));
    const int64_t begin = MonotonicNanos();
    pager_.NoteStart();
    RK_ASSIGN_OR_RETURN(std::shared_ptr<LazyImage> image, pager_.OpenImage(request.at("image")));
    *answer = {{"pages", image->pages()}};
    auto clone = std::make_shared<LazyClone>(pager_, std::move(options), std::move(image),
                                             std::move(descriptors[0]), std::move(descriptors[1]));
    pager_.AddClone(clone);
    clone->Start();
    if (clone->record().wanted()) {
      clone->record().Add("restore", "attach", begin,
                          {{"lazy_pages", answer->at("pages")},
                           {"record_ms", clone->image().Learned() ? 0 : record_ms},
                           {"working_set_pages", static_cast<int64_t>(clone->image().recorded().pages)}});
      followed_ = clone;
    }
    pager_.PrefetchFor(std::move(clone));
    return absl::OkStatus();
  }

  Pager& pager_;
  const UniqueFd socket_;
  std::map<pid_t, UniqueFd> processes_;  // that were named, by their PIDs in the image
  std::shared_ptr<LazyClone> followed_;  // its timeline may be asked for when it needs the pager no more
};

class ClientListener : public PagerSource {
 public:
  ClientListener(Pager& pager, UniqueFd socket) : pager_(pager), socket_(std::move(socket)) {}
  int fd() const override { return socket_.get(); }
  bool takes_long() const override { return true; }  // who is refused is listened to first
  Next OnReady() override {
    pager_.ClientsChanged(1);  // before nobody sees any more that it has come (PagerName)
    UniqueFd accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!accepted.valid() && (errno == EMFILE || errno == ENFILE)) Refuse();
    if (accepted.valid() && IsOurs(accepted.get())) {
      pager_.Add(std::make_shared<Client>(pager_, std::move(accepted)));
    } else {
      pager_.ClientsChanged(-1);
    }
    return Next::kAgain;
  }

 private:
  // The socket lies in a folder that only its owner may enter; this does not rely on it.
  static bool IsOurs(int socket) {
    ucred peer{};
    socklen_t size = sizeof peer;
    return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == 0 || peer.uid == ::geteuid());
  }

  // With the descriptor that is held for this.
  void Refuse() {
    spare_.Reset();
    UniqueFd accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (accepted.valid()) {
      // What is asked is taken first: a socket closed on it would keep the answer from the other side.
      const timeval patience{1, 0};
      ::setsockopt(accepted.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      ReceivePacket(accepted.get()).status().IgnoreError();
      Json answer;
      PutStatus(absl::ResourceExhaustedError(kNoDescriptors), &answer);
      SendPacket(accepted.get(), answer.dump()).IgnoreError();
      accepted.Reset();
    }
    spare_.Reset(::dup(socket_.get()));
  }

  Pager& pager_;
  const UniqueFd socket_;
  UniqueFd spare_{::dup(socket_.get())};
};

}  // namespace

// Whose descriptor is readable as often as there is work.
class DeferredWork : public PagerSource {
 public:
  DeferredWork() : count_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {}
  int fd() const override { return count_.get(); }
  Next OnReady() override {
    eventfd_t one;
    if (::eventfd_read(count_.get(), &one) != 0) return Next::kAgain;
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
    return Next::kAgain;
  }
  void Add(std::function<void()> work) {
    {
      absl::MutexLock lock(&mutex_);
      work_.push_back(std::move(work));
    }
    ::eventfd_write(count_.get(), 1);
  }

 private:
  const UniqueFd count_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<Pager>> Pager::Make(const PagerOptions& options, UniqueFd listener) {
  std::unique_ptr<Pager> pager(new Pager());
  pager->options_ = options;
  store::StoreOptions store_options;
  store_options.path = options.store;
  store_options.create = false;
  absl::StatusOr<std::unique_ptr<store::Store>> opened = store::Store::Open(store_options);
  if (absl::IsPermissionDenied(opened.status())) {
    // Of one that can't be written, copies can be had all the same; what would make the next ones faster is
    // not kept.
    store_options.read_only = true;
    opened = store::Store::Open(store_options);
  }
  RK_ASSIGN_OR_RETURN(pager->store_, std::move(opened));
  auto cache = FrameCache::Make({options.cache_bytes, false, MachineMemory()});
  // Where addresses are limited (ulimit -v), it can't grow later.
  if (!cache.ok()) cache = FrameCache::Make({options.cache_bytes});
  RK_ASSIGN_OR_RETURN(pager->cache_, std::move(cache));
  pager->warmer_ = std::make_unique<CacheWarmer>(pager->store_->path(), *pager->cache_);
  pager->epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  pager->client_epoll_.Reset(::epoll_create1(EPOLL_CLOEXEC));
  pager->ending_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!pager->epoll_.valid() || !pager->client_epoll_.valid() || !pager->ending_.valid())
    return ErrnoStatus(errno, "starting the pager");
  for (const UniqueFd* epoll : {&pager->epoll_, &pager->client_epoll_}) {
    epoll_event end{};
    end.events = EPOLLIN;
    end.data.u64 = kNoSource;
    if (::epoll_ctl(epoll->get(), EPOLL_CTL_ADD, pager->ending_.get(), &end) != 0)
      return ErrnoStatus(errno, "starting the pager");
  }
  pager->deferred_ = std::make_shared<DeferredWork>();
  pager->Add(pager->deferred_);
  pager->name_ = std::make_unique<PagerName>(listener.get());
  pager->Add(std::make_shared<ClientListener>(*pager, std::move(listener)));
  return pager;
}

Pager::~Pager() = default;

uint64_t Pager::Add(std::shared_ptr<PagerSource> source) {
  const int fd = source->fd(), epoll = EpollOf(*source).get();
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;
  uint64_t id;
  {
    absl::MutexLock lock(&mutex_);
    id = next_source_++;
    source->id_ = id;
    sources_[id] = std::move(source);
  }
  event.data.u64 = id;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    Log(LogLevel::kError, absl::StrCat("the pager can't wait for a descriptor: errno ", errno));
    Remove(id);
  }
  return id;
}

void Pager::Remove(uint64_t id) {
  std::shared_ptr<PagerSource> source;
  {
    absl::MutexLock lock(&mutex_);
    auto found = sources_.find(id);
    if (found == sources_.end()) return;
    source = std::move(found->second);
    sources_.erase(found);
  }
  // By hand: others hold the same open file, so that closing ours does not take it off.
  ::epoll_ctl(EpollOf(*source).get(), EPOLL_CTL_DEL, source->fd(), nullptr);
}

void Pager::Work(const UniqueFd& epoll) {
  while (!stop_) {
    epoll_event event;
    if (::epoll_wait(epoll.get(), &event, 1, -1) <= 0) continue;
    const uint64_t id = event.data.u64;  // the event is packed: not aligned
    std::shared_ptr<PagerSource> source;
    {
      absl::MutexLock lock(&mutex_);
      auto found = sources_.find(id);
      if (found == sources_.end()) continue;
      source = found->second;
    }
    Resume(*source, source->OnReady());
  }
}

void Pager::Resume(const PagerSource& source, PagerSource::Next next) {
  switch (next) {
    case PagerSource::Next::kDone:
      Remove(source.id_);
      break;
    case PagerSource::Next::kAgain:
      WaitAgainFor(source.id_, source);
      break;
    case PagerSource::Next::kLater: {
      absl::MutexLock lock(&mutex_);
      later_sources_.push_back(source.id_);
      break;
    }
    case PagerSource::Next::kHeld:
      break;
  }
}

bool Pager::MayWaitForDisk() {
  if (waiting_for_disk_.fetch_add(1) + 1 < std::max<size_t>(options_.threads, 2)) return true;
  waiting_for_disk_.fetch_sub(1);
  return false;
}

void Pager::WaitAgainFor(uint64_t id, const PagerSource& source) {
  epoll_event again{};
  again.events = EPOLLIN | EPOLLONESHOT;
  again.data.u64 = id;
  ::epoll_ctl(EpollOf(source).get(), EPOLL_CTL_MOD, source.fd(), &again);
}

void Pager::OnTick() {
  std::vector<std::pair<uint64_t, std::shared_ptr<PagerSource>>> sources;
  std::vector<std::function<void()>> work;
  {
    absl::MutexLock lock(&mutex_);
    for (uint64_t id : later_sources_) {
      if (auto found = sources_.find(id); found != sources_.end()) sources.emplace_back(id, found->second);
    }
    later_sources_.clear();
    work.swap(later_work_);
  }
  for (const auto& [id, source] : sources) WaitAgainFor(id, *source);
  for (std::function<void()>& some : work) Defer(std::move(some));
}

void Pager::ClientsChanged(int by) {
  absl::MutexLock lock(&mutex_);
  clients_ += by;
  used_ = SteadyNow();
}

void Pager::AwaitTick(absl::Time due) {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    const bool idle = IsIdle();
    const absl::Time until = idle ? std::min(due, used_ + options_.idle_exit) : due;
    bool gone_idle = false;
    const auto woken = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      gone_idle = !idle && IsIdle();
      return gone_idle || HasWorkForTick();
    };
    if (!AwaitUntil(mutex_, absl::Condition(&woken), Deadline(until - SteadyNow())) || !gone_idle) return;
  }
}

void Pager::Run() {
  const int disk = static_cast<int>(std::max<size_t>(options_.disk_threads, 1));
  disk_ = std::make_unique<FairThreads>(disk, disk);
  const int fillers = static_cast<int>(std::max<size_t>(options_.fill_threads, 2));
  fillers_ = std::make_unique<FairThreads>(fillers, fillers - 1);
  for (size_t i = 0; i < std::max<size_t>(options_.threads, 2); ++i)
    threads_.emplace_back([this] { Work(epoll_); });
  for (size_t i = 0; i < std::max<size_t>(options_.client_threads, 1); ++i)
    threads_.emplace_back([this] { Work(client_epoll_); });
  threads_.emplace_back([this] { TickClones(); });
  threads_.emplace_back([this] { FillInBackground(); });
  threads_.emplace_back([this] { PrefetchInBackground(); });
  threads_.emplace_back([this] { WarmInBackground(); });
  threads_.emplace_back([this] { KeepInBackground(); });
  absl::Time saved = SteadyNow();
  {
    absl::MutexLock lock(&mutex_);
    used_ = saved;
  }
  for (;;) {
    AwaitTick(saved + kSaveHotList);
    absl::SleepFor(kTick);  // what asks for the next tick is not served at once
    OnTick();
    const auto busy = [this] {
      absl::MutexLock lock(&mutex_);
      return !IsIdle();
    };
    const absl::Time now = SteadyNow();
    bool unused;
    {
      absl::MutexLock lock(&mutex_);
      unused = IsIdle() && now - used_ > options_.idle_exit;
    }
    if (unused && name_->GiveUp(busy)) break;
    if (now - saved > kSaveHotList) {
      SaveHotList();
      saved = now;
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  ::eventfd_write(ending_.get(), 1);
  for (std::thread& thread : threads_) thread.join();
  fillers_->Join();
  disk_->Join();
  SaveHotList();
}

absl::StatusOr<std::shared_ptr<LazyImage>> Pager::OpenImage(const std::string& image) {
  for (;;) {
    uint64_t dropped;
    {
      absl::MutexLock lock(&mutex_);
      dropped = working_sets_dropped_;
      auto found = images_.find(image);
      if (found != images_.end()) {
        auto place = std::find(image_order_.begin(), image_order_.end(), image);
        std::rotate(place, place + 1, image_order_.end());
        return found->second;
      }
      // Who expects it and who wants it come one after the other.
      auto nobody_opens_it = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return being_opened_.count(image) == 0;
      };
      if (!nobody_opens_it()) {
        mutex_.Await(absl::Condition(&nobody_opens_it));
        continue;
      }
      being_opened_.insert(image);
    }
    absl::StatusOr<std::shared_ptr<LazyImage>> opening = LazyImage::Open(*store_, image);
    absl::MutexLock lock(&mutex_);
    being_opened_.erase(image);
    RK_ASSIGN_OR_RETURN(std::shared_ptr<LazyImage> opened, std::move(opening));
    if (dropped != working_sets_dropped_) continue;  // it may have one that has just been dropped
    auto [place, added] = images_.try_emplace(image, std::move(opened));
    const std::shared_ptr<LazyImage> kept = place->second;
    if (added) image_order_.push_back(image);
    if (image_order_.size() > kMostImages) {
      images_.erase(image_order_.front());
      image_order_.erase(image_order_.begin());
    }
    return kept;
  }
}

absl::StatusOr<bool> Pager::DropWorkingSet(const std::string& image) {
  bool dropped = false;
  do {
    RK_ASSIGN_OR_RETURN(bool removed, RemoveWorkingSet(*store_, image));
    dropped |= removed;
    // Whoever had it may have put it back before it was told.
  } while (ForgetWorkingSet(image));
  return dropped;
}

bool Pager::ForgetWorkingSet(const std::string& image) {
  std::shared_ptr<LazyImage> opened;
  std::vector<std::shared_ptr<LazyClone>> clones;
  {
    absl::MutexLock lock(&mutex_);
    ++working_sets_dropped_;
    auto found = images_.find(image);
    if (found != images_.end()) {
      opened = std::move(found->second);
      images_.erase(found);
      image_order_.erase(std::find(image_order_.begin(), image_order_.end(), image));
    }
    for (const auto& [id, clone] : clones_) clones.push_back(clone);
  }
  bool anybody = opened != nullptr && opened->ForgetWorkingSet();
  for (const std::shared_ptr<LazyClone>& clone : clones) {
    if (clone->image().reader().info().digest == image) anybody |= clone->image().ForgetWorkingSet();
  }
  return anybody;
}

void Pager::ForgetRemovedImages() {
  std::vector<std::string> open;
  {
    absl::MutexLock lock(&mutex_);
    open = image_order_;
  }
  std::vector<std::shared_ptr<LazyImage>> forgotten;  // not destroyed under the lock
  for (const std::string& image : open) {
    if (!absl::IsNotFound(store_->Find(image).status())) continue;
    absl::MutexLock lock(&mutex_);
    auto found = images_.find(image);
    if (found == images_.end()) continue;
    forgotten.push_back(std::move(found->second));
    images_.erase(found);
    image_order_.erase(std::find(image_order_.begin(), image_order_.end(), image));
  }
}

void Pager::DiscardFreedFrames() {
  // What can't be found out is discarded when others want its memory.
  const auto freed = store::FreedFrames(*store_, cache_->Frames());
  if (freed.ok()) cache_->Discard(*freed);
}

void Pager::AddClone(std::shared_ptr<LazyClone> clone) {
  absl::MutexLock lock(&mutex_);
  ++clones_served_;
  clones_[clone->id()] = std::move(clone);
}

void Pager::RemoveClone(const std::string& id) {
  std::shared_ptr<LazyClone> last;  // not destroyed under the lock
  absl::MutexLock lock(&mutex_);
  auto found = clones_.find(id);
  if (found == clones_.end()) return;
  last = std::move(found->second);
  clones_.erase(found);
  used_ = SteadyNow();
}

absl::StatusOr<std::shared_ptr<LazyClone>> Pager::FindClone(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  auto found = clones_.find(id);
  if (found != clones_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("the pager serves no sandbox ", id));
}

void Pager::Defer(std::function<void()> work) { deferred_->Add(std::move(work)); }

void Pager::DeferToTick(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  later_work_.push_back(std::move(work));
}

uint64_t Pager::ShareOfAClone() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  absl::MutexLock lock(&mutex_);
  return ShareOfDescriptors(limit.rlim_cur, LazyTask::count(), clones_.size());
}

void Pager::WakeFiller() {
  absl::MutexLock lock(&mutex_);
  filler_woken_ = true;
}

uint64_t Pager::HugeBytes() {
  // Looked up page by page by the kernel, which takes long enough to be felt by copies that wait.
  constexpr absl::Duration kKnownFor = absl::Seconds(2);
  absl::MutexLock lock(&huge_mutex_);
  if (SteadyNow() - huge_known_at_ > kKnownFor) {
    huge_bytes_ = cache_->HugeBytes();
    huge_known_at_ = SteadyNow();
  }
  return huge_bytes_;
}

std::string Pager::Stats(bool with_clones) {
  std::vector<std::shared_ptr<LazyClone>> clones;
  Json json;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, clone] : clones_) clones.push_back(clone);
    json["clones_served"] = clones_served_;
    json["images"] = images_.size();
    json["prefill"] = {{"loaded", sets_loaded_}, {"made", sets_made_}, {"kept", sets_kept_}};
  }
  json["serving"] = clones.size();
  json["clones"] = Json::array();
  uint64_t missing = 0;
  for (const std::shared_ptr<LazyClone>& clone : clones) {
    const LazyClone::Numbers n = clone->numbers();
    missing += n.missing;
    if (!with_clones) continue;
    json["clones"].push_back({{"clone", clone->id()},
                              {"pages", n.pages},
                              {"missing", n.missing},
                              {"faults", n.faults},
                              {"zero_faults", n.zero_faults},
                              {"prefilled", n.prefilled},
                              {"filled", n.filled},
                              {"processes", n.processes},
                              {"running", n.running}});
  }
  json["missing"] = missing;
  const FrameCacheStats cache = cache_->Stats();
  json["cache"] = {{"hits", cache.hits},
                   {"misses", cache.misses},
                   {"hit_bytes", cache.hit_bytes},
                   {"miss_bytes", cache.miss_bytes},
                   {"evictions", cache.evictions},
                   {"refusals", cache.refusals},
                   {"frames", cache.frames},
                   {"bytes", cache.bytes},
                   {"pinned_bytes", cache.pinned_bytes},
                   {"private_bytes", cache.private_bytes},
                   {"memory_bytes", cache.memory_bytes},
                   {"huge_bytes", HugeBytes()},
                   {"warmed", cache.warmed},
                   {"warming", warmer_->warming()},
                   {"budget_bytes", cache.budget_bytes}};
  return json.dump();
}

}  // namespace rekindle::restore
