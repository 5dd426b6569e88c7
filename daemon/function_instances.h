// Processes of functions on this node: clones of images, forks of templates, plain processes where there is
// no image; and the images and templates themselves. docs/functions.md is the users' page.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/cancellation.h"
#include "daemon/damaged_images.h"
#include "daemon/load_report.h"
#include "daemon/node.h"
#include "daemon/refused_images.h"
#include "functions/function_catalog.h"
#include "functions/function_logs.h"
#include "functions/http_threads.h"
#include "functions/instance_process.h"

namespace rekindle::daemon {

// Of functions' own images: their labels, which have the function's name and revision, and how their names
// begin.
inline constexpr char kFunctionLabel[] = "rekindle.function";
inline constexpr char kRevisionLabel[] = "rekindle.function.revision";
inline constexpr char kFunctionImages[] = "functions/";

class LiveTemplate;  // function_template.h

// One revision of a function, as long as something of it may run.
struct LiveFunction {
  functions::FunctionRecord record;
  std::string dependency_digest;  // empty: none
  // Before the other one. The same revision's that has taken its place has it, too: one capture at a time.
  std::shared_ptr<absl::Mutex> capturing = std::make_shared<absl::Mutex>();
  absl::Mutex mutex;
  std::set<Cancellation*> making ABSL_GUARDED_BY(mutex);  // of its image or template, as long as that is made
  std::string image_digest ABSL_GUARDED_BY(mutex);        // of its own image; empty: none
  absl::Time image_dropped ABSL_GUARDED_BY(mutex) = absl::InfinitePast();  // SteadyNow(), of a refused one
  std::shared_ptr<LiveTemplate> own_template ABSL_GUARDED_BY(mutex);
};

// Thread-safe.
class FunctionInstances : public functions::InstanceStarter {
 public:
  // `image_made` is told of each new image of a function: its reference. `loaded`: whether a function's
  // handler could be loaded, as an instance that asks for its first call or its runtime's complaint shows.
  // `files_changed`: a start has found that files which its image needs are other ones now (`refused` says of
  // which one of dependencies that is so), or that the one of its dependencies has gone, or is damaged, which
  // `damaged` says.
  FunctionInstances(
      Node& node, functions::FunctionLogs& logs, functions::HttpThreads& threads,
      std::shared_ptr<DamagedImages> damaged, std::shared_ptr<RefusedImages> refused,
      std::function<void(const std::string& name, uint64_t revision, const std::string& reference)>
          image_made,
      std::function<void(const std::string& name, uint64_t revision, const absl::Status& loaded)> loaded,
      std::function<void()> files_changed);
  ~FunctionInstances() override;

  // Why instances run without limits on this machine; ok: they have them.
  static const absl::Status& LimitsUsable();
  // Of an instance, and of what is run of its code before there is one.
  static restore::CgroupLimits LimitsOf(const functions::FunctionSpec& spec);
  static restore::Network NetworkOf(const functions::FunctionSpec& spec);
  restore::OwnTemporary TemporaryOf(const functions::FunctionRecord& record) const;

  // A revision that may be started from now on. `dependency` may be null. Returns whether its own image is
  // there; one that was made meanwhile, or is just being made, of what it depended on before, goes. By one
  // thread at a time.
  bool Add(const functions::FunctionRecord& record, const store::ImageInfo* dependency)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing of it is started any more, and its template and image go. An image that is being made is given
  // up; `await_image`: before this returns. With the result its code may go, which may take long.
  std::shared_ptr<const void> Remove(const std::string& name, uint64_t revision, bool await_image)
      ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<functions::StartedInstance> Start(const functions::StartOrder& order) override;
  absl::StatusOr<uint64_t> MakeTemplate(const std::string& function, uint64_t revision,
                                        const std::string& dependency_image) override;
  void DropTemplate(const std::string& function, uint64_t revision,
                    const std::string& dependency_image) override;
  absl::StatusOr<uint64_t> CaptureImage(const std::string& function, uint64_t revision) override;
  void DropImage(const std::string& function, uint64_t revision) override;
  void StopMaking() override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using LivePtr = std::shared_ptr<LiveFunction>;
  struct Place;
  class Making;
  // NotFound.
  absl::StatusOr<LivePtr> Find(const std::string& name, uint64_t revision) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<functions::StartedInstance> StartCopy(const functions::StartOrder& order,
                                                       const LivePtr& live, Place place);
  // A copy of the image with this digest; `damaged_` hears of what is wrong with the image.
  absl::StatusOr<restore::CloneResult> CopyImage(store::Store& store, const restore::CloneOptions& options);
  // Of a copy that was cancelled.
  absl::Status GivenUp(const absl::Status& why) const;
  absl::StatusOr<functions::StartedInstance> StartCold(const functions::StartOrder& order,
                                                       const LivePtr& live, Place place);
  // Unavailable: the store is away, or the code is not in it any more.
  absl::Status CheckCode(const functions::FunctionRecord& record);
  // Of a socket. No daemon has had the same: an instance that one which was killed has left comes to a name
  // that is not there, and ends, instead of answering another function's calls.
  std::string NewPath();
  absl::StatusOr<Place> MakePlace(const functions::StartOrder& order, const LiveFunction& live);
  absl::StatusOr<std::shared_ptr<LiveTemplate>> TemplateFor(const LivePtr& live, functions::StartLevel level)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Unavailable: it was the present one, and is no more; NotFound: another has taken its place.
  absl::Status DropLostTemplate(const LivePtr& live, functions::StartLevel level,
                                const std::shared_ptr<LiveTemplate>& lost, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Of its own image `digest`, of which a copy was refused since the files that it needs are other ones now,
  // or it is damaged: OK, it is gone, and may be made anew. Unavailable: it stays for now, since the store is
  // away, or another was dropped just before.
  absl::Status DropRefusedImage(const LivePtr& live, const std::string& digest, const absl::Status& why);
  // Its own image, which is made if there is none.
  absl::StatusOr<std::string> ImageOf(const LivePtr& live);
  absl::StatusOr<std::shared_ptr<LiveTemplate>> TemplateUp(const LivePtr& live, const std::string& digest);
  // LiveTemplate::Up; `damaged_` hears of what is wrong with the image.
  absl::StatusOr<std::shared_ptr<LiveTemplate>> TemplateOf(restore::CloneOptions options);
  restore::CloneOptions OptionsFor(const LiveFunction& live, const std::string& digest) const;
  bool RemoveImage(LiveFunction& live);  // false: there is none
  // Of a function that did not come to the point at which its image is taken: with what it has told, and
  // where there is more.
  absl::Status NotLoaded(const functions::FunctionRecord& record, const absl::Status& why,
                         const LoadReport::Told& told);
  // Where who has written the function looks.
  void NoteInLog(const functions::FunctionRecord& record, absl::string_view text);
  // What its runtime says was drawn at random while it was loaded for its image, among all that was written.
  void NoteDrawn(const functions::FunctionRecord& record, absl::string_view written);
  // The same revision's. Returns whether there was one.
  static bool TakeOverImage(LiveFunction& before, LiveFunction& live);
  // Its own image that was just captured is that of whichever has taken its place meanwhile, if it is of use
  // for that. Aborted, NotFound: it is not, and is gone.
  absl::Status GiveImage(LivePtr live, const std::string& digest) ABSL_LOCKS_EXCLUDED(mutex_);

  Node& node_;
  functions::FunctionLogs& logs_;
  functions::HttpThreads& threads_;
  const std::shared_ptr<DamagedImages> damaged_;
  const std::shared_ptr<RefusedImages> refused_;
  const std::function<void(const std::string&, uint64_t, const std::string&)> image_made_;
  const std::function<void(const std::string&, uint64_t, const absl::Status&)> loaded_;
  const std::function<void()> files_changed_;
  const std::string directory_;  // of sockets
  uint32_t run_ = 0;             // at random, in their names
  std::atomic<uint64_t> next_{1};

  Cancellation starts_stopped_;
  mutable absl::Mutex mutex_;
  bool making_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::pair<std::string, uint64_t>, LivePtr> functions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<LiveTemplate>> dependency_templates_
      ABSL_GUARDED_BY(mutex_);  // by reference
};

}  // namespace rekindle::daemon
