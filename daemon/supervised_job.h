// One supervised job: watched, checkpointed while it runs, brought back when it dies. A thread of its own
// does all of it, one thing after the other; what the calls of others want is noted and done in its turn.
#pragma once

#include <atomic>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "ckpt/staging_arena.h"
#include "daemon/copy_command.h"
#include "daemon/image_visits.h"
#include "daemon/job_events.h"
#include "daemon/job_file.h"
#include "daemon/job_notices.h"
#include "daemon/job_strays.h"
#include "daemon/node.h"
#include "daemon/removed_files.h"
#include "daemon/reopened_files.h"
#include "daemon/restart_points.h"
#include "daemon/rpc_support.h"
#include "daemon/seen_processes.h"
#include "daemon/supervised_hold.h"
#include "daemon/supervised_record.h"
#include "daemon/wakeup.h"
#include "rekindle/v1/supervised_job.pb.h"
#include "supervise/checkpoint_interval.h"
#include "supervise/progress_watch.h"
#include "supervise/restart_policy.h"

namespace rekindle::daemon {

// How the last error of one begins that waits for what it can't be brought back without.
inline constexpr char kNotYet[] = "it can't be brought back yet: ";

// Thread-safe.
class SupervisedJob {
 public:
  // Launches it. Errors: it could not be, and nothing of it is left.
  static absl::StatusOr<std::shared_ptr<SupervisedJob>> Launch(Node& node, v1::SupervisedJobRecord record,
                                                               SupervisedHold hold, UniqueFd log,
                                                               std::vector<std::string>* warnings);
  // The same with one that goes on from the image that its record has. `log`: a file for its output; empty:
  // the one that it had. `restarted` says what became of its files.
  static absl::StatusOr<std::shared_ptr<SupervisedJob>> LaunchFromImage(Node& node,
                                                                        v1::SupervisedJobRecord record,
                                                                        SupervisedHold hold,
                                                                        const std::string& log,
                                                                        v1::JobRestarted* restarted);
  // Goes on supervising one that another process had: as it runs, or brought back.
  static std::shared_ptr<SupervisedJob> TakeOver(Node& node, v1::SupervisedJobRecord record,
                                                 SupervisedHold hold);
  // One that has ended, as it is remembered.
  static std::shared_ptr<SupervisedJob> Remember(Node& node, v1::SupervisedJobRecord record);
  // Leaves the job as it is.
  ~SupervisedJob();

  const std::string& name() const { return name_; }
  uid_t owner() const { return owner_; }
  int64_t submitted_unix_ns() const { return submitted_unix_ns_; }
  JobEvents& events() { return notices_.events(); }
  bool Ended() const ABSL_LOCKS_EXCLUDED(mutex_);
  // As `ps` shows it. Absent: there is nothing to show. `all`: see ToProto of a JobRecord.
  v1::Job Describe(const ProcessChildren* all = nullptr) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Of its images; nothing: they are copied nowhere.
  std::optional<CopyPlan> PlanOfCopies() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The name of its images, and the seconds between two of them now; 0: none are taken by interval.
  std::pair<std::string, double> PeriodOfImages() const ABSL_LOCKS_EXCLUDED(mutex_);
  // To those who follow it, now and later: that its images do not get to that place; empty: they do again.
  void TellOfCopies(const std::string& place, const std::string& trouble) {
    notices_.TellOfCopies(place, trouble);
  }
  // What whoever begins to follow it is told of its copies; nothing: all is well.
  std::optional<v1::JobEvent> TroubleOfCopies() const { return notices_.TroubleOfCopies(); }

  // Is this process its root?
  bool IsNow(pid_t pid) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The caller sends it a signal that ends most programs: if this life of it ends, it is meant to, unless it
  // goes on long after.
  void WillEnd(int signal) ABSL_LOCKS_EXCLUDED(mutex_);
  // May it be brought back from an image of theirs?
  bool MayUseImagesOf(uid_t owner) const ABSL_LOCKS_EXCLUDED(mutex_);
  // See Supervisor.
  void AddPoint(v1::RestartPoint point) ABSL_LOCKS_EXCLUDED(mutex_);
  // The labels of an image that a call takes of it, with the next number.
  std::map<std::string, std::string> LabelsOfNextImage(uint64_t* number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends it for good: SIGTERM, after `grace` SIGKILL. Returns when it has ended. If this process dies before
  // that, whoever takes the job over ends it.
  absl::StatusOr<v1::StopJobResponse> Stop(absl::Duration grace, bool checkpoint,
                                           const std::function<bool()>& cancelled)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // An image as soon as can be; returns when it was taken or could not be, after `patience` at the latest.
  // While somebody else captures the job it is tried again. FailedPrecondition: it waits to be brought back,
  // and has nothing to take one of.
  absl::Status CheckpointNow(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of its images (Supervision.track_paths).
  std::vector<std::string> TrackPaths() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Until its supervisor takes no image of it, which can be no other's meanwhile. `cancelled` ends the
  // waiting.
  void AwaitOwnImage(const std::atomic<bool>& cancelled) ABSL_LOCKS_EXCLUDED(mutex_);
  // A call takes an image of it. Returns when the job stands at a boundary of its choice, or comes to none in
  // time; then, or with Cancelled, EndVisit() has to follow, and lets it go on. `number`: for that. One that
  // has not asked for an image itself goes on from VisitIsFrozen() on.
  absl::Status BeginVisit(const std::atomic<bool>& cancelled, uint64_t* number) ABSL_LOCKS_EXCLUDED(mutex_);
  void VisitIsFrozen(uint64_t number) { visits_.IsFrozen(number); }
  // For who takes an image of it, when it stands still and before it goes on: what it made just before that,
  // and removes at once, is kept too. The first does not wait, the second not for long.
  void KeepItsFilesMeanwhile();
  void AwaitItsFilesKept();
  void EndVisit(uint64_t number, bool stored) { visits_.End(number, stored); }
  // Of one that has ended: takes its thread back, and records the end, which the disk may not have taken at
  // first. For one thread.
  void TidyUpEnd() ABSL_LOCKS_EXCLUDED(writing_, mutex_);
  // And its end is recorded.
  bool EndedBefore(absl::Time time) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Time EndedAt() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Its name is to be another job's: nothing is recorded of it any more, not even what was being recorded.
  void ForgetEnded() ABSL_LOCKS_EXCLUDED(writing_, mutex_);
  // The thread ends, the job runs on. An image that is being taken is given up.
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  SupervisedJob(Node& node, v1::SupervisedJobRecord record, std::optional<SupervisedHold> hold);

  // An image that the job has outlived by this does not hold the death that came after.
  static constexpr int64_t kProvenNanos = 5'000'000'000;
  // After this an image is tried again that could not be taken because somebody else captures the job.
  static constexpr double kBusySeconds = 0.5;

  // What has ended the watch over its life.
  enum class Turn { kDied, kStop, kLeave };

  // supervised_job.cc
  // CheckpointNow, once.
  absl::Status TakeImageWithin(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a new one: follows its first life, or leaves nothing of it if that could not begin, but what was
  // `before` it.
  static absl::StatusOr<std::shared_ptr<SupervisedJob>> Supervise(std::shared_ptr<SupervisedJob> job,
                                                                  absl::StatusOr<RegisteredJob> first_life,
                                                                  const EndedRecord& before);
  // Of one that could not be started: what was `before` it is there again.
  void RemoveRecord(const EndedRecord& before);
  void Loop();
  absl::StatusOr<RegisteredJob> StartFromBeginning(UniqueFd log, std::vector<std::string>* warnings);
  void BeginLife(const RegisteredJob& job);
  void Await(std::shared_ptr<const JobEnd> end);
  void NoteLife(const JobRecord& life) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Before its end, also where somebody else captures it just now.
  absl::Status TakeLastImage(std::string* image);
  // Whether it is done with: not when the image that was to be its last could not be taken.
  bool StopLife();
  // That it was sent a signal, or may have been.
  void ForgetSignal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotePoint(v1::RestartPoint point) ABSL_LOCKS_EXCLUDED(mutex_);
  // The labels by which the next image is known as one of it, should nobody live to add it to the points.
  std::map<std::string, std::string> LabelsOfImage(uint64_t number) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteStop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // By which its processes are known. Those of `others`, if they are not known, can't be told from those that
  // only carry its mark.
  JobTraits Traits(const absl::StatusOr<std::vector<JobRecord>>& others, bool by_mark) const;
  void KillAll();
  // Those that live and may have its mark from an image.
  absl::StatusOr<std::vector<JobRecord>> OtherJobs() const;
  void Finish(const ExitState& exit, bool failed, const std::string& report);
  // False: somebody wants something else.
  bool Wait(double seconds);
  // Puts the record on disk as it is when its turn comes: a later state is never replaced by an earlier one.
  // The disk may take its time, or hang: nobody who only looks at the job waits for it.
  absl::Status WriteRecord() ABSL_LOCKS_EXCLUDED(writing_, mutex_);
  // The same, where a failure is only logged.
  void Save() ABSL_LOCKS_EXCLUDED(writing_, mutex_);
  void SetPhase(const char* phase) ABSL_LOCKS_EXCLUDED(mutex_);
  void OpenJobFile();
  void RemoveJobFile();
  Call OwnCall() const;
  std::string MarkVariable() const;
  std::string ImagesName() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::string JobFilePath() const;
  std::optional<RunAs> User() const;
  LaunchOptions LaunchPlan() const;
  bool Wanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return leave_ || stop_; }
  bool StopAnswered() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_told_ || !stop_error_.ok(); }
  bool HasLife() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ImagesAnswered() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return images_answered_ >= images_asked_ || record_.ended() || record_.stopping() || !HasLife();
  }

  // supervised_takeover.cc
  void LoopAfterTakingOver();
  // It has a life, which is watched now. An error: it may have one, which can't be watched now.
  absl::StatusOr<bool> AdoptLife();
  // Among the jobs of this runtime folder, which may have been emptied, or be another one, since. Whether it
  // was not and is now.
  bool ListLife(const JobRecord& life) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same of the life that it has.
  bool ListAgain() ABSL_LOCKS_EXCLUDED(mutex_);
  // The life that the record knows, or one that somebody has given the job since: by hand, or while the disk
  // did not take the record.
  std::optional<JobRecord> FindLife() const ABSL_LOCKS_EXCLUDED(mutex_);
  // How the recorded life ended, if somebody saw it.
  std::optional<JobRecord> FindEnd() const ABSL_LOCKS_EXCLUDED(mutex_);
  // For whoever takes over what may end with us: this life has an image, and that we leave is not its doing.
  void NoteLeftLife() ABSL_LOCKS_EXCLUDED(writing_, mutex_);
  // Of a life that is taken over.
  void ForgetLeftLife();

  // supervised_life.cc
  Turn WatchLife();
  // How long there is nothing to look at, unless it is woken.
  absl::Duration RestOfWatch() const;
  void ResetWatch();
  // `kept_from_running`: somebody has stopped it, or its device memory is off its GPUs; may be null.
  supervise::ProgressSample Sample(bool* kept_from_running = nullptr);
  void LookForProgress(double now);
  // It runs, and has come to a `further_step`, or reports none.
  void LookForSurvival(bool further_step) ABSL_LOCKS_EXCLUDED(writing_, mutex_);
  void AddRunTime() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `asked`: by somebody, who wants it stored.
  absl::Status TakeImage(bool asked, std::string* image = nullptr);
  class BoundaryGate;
  // Of an attempt to take an image, to those who follow the job.
  void TellOfImage(const absl::Status& taken);
  absl::Status CaptureImage(BoundaryGate* gate, v1::CheckpointResult* result);
  void PlanNextImage(double seconds);
  // Of a job that has just come back: see restore::SpreadThreads.
  void SpreadThreads();
  bool MayBeEnding();
  // Until the job stands at a boundary of its own choice, if it knows any. Was it so?
  // `given_up`: nobody waits for that any more; may be null.
  bool AwaitBoundary(const std::function<bool()>& given_up = nullptr);
  // Of another thread that takes an image: has the job stand at a boundary until that has all its memory, or
  // is stored where the job has asked for one.
  void ReceiveVisit() ABSL_LOCKS_EXCLUDED(mutex_);
  // That the job has had since the last one that was heard: its number. Nothing: none.
  std::optional<uint64_t> NewWish() const;
  // `make_room`: also those that --keep would keep, but for the newest and the one to go back to. False:
  // none could be removed.
  bool RemoveOldImages(bool make_room = false);
  // See RestartPoints::OfEarlierStarts; none where none of them can go once the `going` points have gone.
  // `images`: of the store, where it was asked.
  std::vector<v1::RestartPoint> ImagesOfEarlierStarts(bool make_room,
                                                      const std::vector<v1::RestartPoint>& going,
                                                      std::vector<store::ImageInfo>* images)
      ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<std::string> DamagedImages();  // their names, sorted
  // Takes those out of `going` that were taken `before` this start and are needed elsewhere, or may be.
  // `images`: of the store; none: it has not been asked.
  void LeaveWhatOthersNeed(uint64_t before, std::vector<store::ImageInfo> images,
                           std::initializer_list<std::vector<v1::RestartPoint>*> going);
  // Those that were not long ago.
  void LeaveWhatWasNeeded(std::vector<v1::RestartPoint>* going);
  absl::StatusOr<std::vector<store::ImageInfo>> StoredImages();
  bool RemoveToMakeRoom(const std::vector<v1::RestartPoint>& images);
  // False: it could remove none.
  bool RemoveImagesOf(const std::vector<v1::RestartPoint>& images);
  absl::Status RemoveImageOf(const v1::RestartPoint& image);
  // After that moment the job got further: images from before are not of one that hangs.
  int64_t SoundUntilNanos();
  // Also where nobody has told it yet.
  bool HasDied() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Images from after that moment may hold a death or a hang.
  int64_t SoundBeforeNanos() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // supervised_warnings.cc
  // Its processes that no image of it has. Looked for now and then, until some were told.
  Strays LookForStrays();
  Strays StraysAmong(const ProcessTable& processes) const;
  // Those of before and after an image.
  void TellOfStrays(const Strays& before);
  // Now and then, of one that gets no longer.
  void LookForFullLog(double now, uint64_t log_bytes);
  void TellOfUnseenHangs(double now);
  // That the hook in it looks for its file in another runtime folder than ours.
  void TellOfOtherFolder();
  // Files that it has appended to again, though the image that it went on from knew nothing of them.
  void TellOfReopenedFiles(double now);

  // supervised_restart.cc
  supervise::Death TakeDeath();
  // That happened then.
  supervise::Death DeathBy(const ExitState& exit, int64_t ended_unix_ns);
  // Of a life that ended while no daemon ran, or with the machine.
  supervise::Death DeathWithoutWitness(bool other_boot) ABSL_LOCKS_EXCLUDED(mutex_);
  // False: it has ended for good, or somebody else is to bring it back.
  bool BringBack(supervise::Death death);
  supervise::RestartDecision DecideAfter(const supervise::Death& death) ABSL_LOCKS_EXCLUDED(mutex_);
  // As BringBack, where that was decided on by a process that has ended since.
  bool CarryOutDecision();
  // What its owner may do where it was given up because it missed a file; empty: that is not why.
  std::string HintAtRemovedFiles() const ABSL_LOCKS_EXCLUDED(mutex_);
  // See WarnOfFullLog.
  std::string HintAtFullLog() const ABSL_LOCKS_EXCLUDED(mutex_);
  // `how`: its last life ended.
  bool Revive(supervise::RestartDecision decision, const std::string& how, const Stopwatch& since_death);
  struct Revival;
  // From the image, or from its beginning. Nothing: it could not be, and there is another decision now; else
  // as Revive.
  std::optional<bool> Attempt(const std::optional<v1::RestartPoint>& point, Revival* revival);
  void TellThatItIsBack(const std::optional<v1::RestartPoint>& point, const Revival& revival, pid_t pid,
                        v1::JobEvent* event);
  // Because of the decision, or because there is nothing left to go on from.
  // `images`: that it could have gone back to, `newest` the newest.
  void GiveUp(const supervise::RestartDecision& decision, size_t images, const std::string& newest);
  // Whoever takes the job over while it waits carries out the same.
  void NoteDecided() ABSL_LOCKS_EXCLUDED(mutex_);
  bool EndWithoutLife();
  // Whether images can be read at all.
  absl::Status CheckStoreIsReadable();
  // Tries until it is back, something else is wanted (Cancelled), or there is no use in it. Without a point:
  // from its beginning. An image that does not fit this machine is of no use unless it `waits_for_machine`.
  absl::StatusOr<RegisteredJob> TryToRevive(const std::optional<v1::RestartPoint>& point,
                                            bool waits_for_machine, v1::JobRestarted* restarted);
  // `revival`: nobody is there to put files back that were edited. `log` as for LaunchFromImage.
  absl::StatusOr<RegisteredJob> RestoreFrom(const v1::RestartPoint& point, v1::JobRestarted* restarted,
                                            bool revival, const std::string& log = "");
  // `words`: what it said at last; may be empty.
  void NoteDeath(const supervise::Death& death, absl::string_view words)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // See RestartPoints::NoteSound.
  void NoteSound(int64_t sound_before_ns, bool is_over) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of work, if it died when the last death was.
  double LostSeconds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Until then its last life, of which nobody saw the end, has lasted at least; of the machine's clock.
  double SecondsOfLife() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t LastSignOfLife(const v1::SupervisedJobRecord& record) const ABSL_LOCKS_EXCLUDED(mutex_);
  // What the store has of its images is what it can go on from.
  void FindPoints();
  // Images of a job that hung already would only hang again.
  void ForgetImagesOfHang();

  // What it has removed since the oldest image that is kept of it is kept, too, and no longer.
  // `begins_with_unix_ns`: see RemovedFiles::Keep.
  void KeepItsFiles(int64_t begins_with_unix_ns = INT64_MIN);
  // Whether there is an image for which that was not done yet; it counts as done then.
  bool HasUnkeptImages() ABSL_LOCKS_EXCLUDED(mutex_);
  // The image that is being taken is of now.
  void NoteFrozen() ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetItsFiles(bool ended = false) ABSL_LOCKS_EXCLUDED(mutex_);
  void LogIfLeft(const v1::FileRollback& file) const;
  void PutItsFilesBack(const v1::RestartPoint& point, v1::JobRestarted* restarted);
  void LookForReopenedFiles(const v1::RestartPoint& point);

  Node& node_;
  const std::string name_, mark_, directory_;
  const uid_t owner_;
  const int64_t submitted_unix_ns_;
  const int64_t first_submitted_unix_ns_;    // of one that began with an image; 0: it did not, or not known
  const std::string ancestors_, seen_ways_;  // of such a one
  JobNotices notices_;
  // Changed by the loop's thread alone, with the mutex: whoever saves the record has what they remember.
  supervise::RestartPolicy restart_policy_;
  supervise::CheckpointInterval interval_;
  supervise::ProgressWatch progress_;

  RemovedFiles removed_;
  ReopenedFiles reopened_;

  // Of the loop's thread alone.
  std::shared_ptr<const JobEnd> end_;
  std::optional<JobFile> job_file_;
  bool told_of_wishes_ = false;  // of what comes to be in that file; false: it has to be looked at
  SeenProcesses seen_;
  ckpt::KeptStaging kept_staging_;
  bool hung_ = false;
  bool image_owed_ = false;       // one was asked for that could not be taken yet
  bool counts_run_time_ = false;  // from a life's beginning to its death
  int64_t hung_since_ns_ = 0;
  int64_t died_since_ns_ = 0;  // while an image was taken: it lived then for the last time; 0: it did not
  std::optional<std::vector<v1::RestartPoint>> earlier_;  // of earlier starts, as was seen last
  std::map<std::string, double> needed_until_;            // images of these, by others
  std::set<std::string> cut_of_others_told_;              // files
  bool strays_told_ = false, unseen_hangs_told_ = false;
  double next_look_for_strays_ = 0, next_look_at_log_ = 0;
  uint64_t log_bytes_ = 0;     // then
  double hindered_since_ = 0;  // the machine keeps it from coming back; 0: it does not
  double next_sample_ = 0, next_image_ = 0, spread_until_ = 0;
  double cpu_seconds_ = 0, cpu_sampled_ = 0, cpu_rate_ = 0;  // the rate in processors
  uint64_t boundaries_ = 0, wanted_ = 0;
  uint64_t best_step_ = 0, best_step_before_ = 0, last_step_ = 0;
  ExitState last_exit_;
  int64_t since_death_ns_ = 0;        // the last one, which a daemon may see long after
  int64_t died_unix_ns_ = INT64_MAX;  // then; not known
  // What it has appended to again and was not told of yet, and since when there is some; what was told.
  ReopenedFiles::Appended reopened_untold_;
  std::set<std::string> reopened_told_;
  double reopened_since_ = 0;
  // And so its session is nobody else's. Only until what was left of a life has been ended: then its number
  // is free for others.
  bool saw_life_ = false;

  // Nobody saw how its life ended. The reaper, which outlives us, writes it.
  std::shared_ptr<std::atomic<bool>> end_unknown_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> cancel_image_{false};
  std::atomic<bool> unsaved_{false};  // the disk did not take the record
  // When somebody wants something else of the thread while there is no life to watch.
  // Of its own thread. Shared with who tells of a life's end, which may be after this is gone.
  const std::shared_ptr<Wakeup> wakeup_ = std::make_shared<Wakeup>();

  // Locks are taken in this order: writing_, mutex_, then those of notices_, visits_ and wakeup_, under which
  // nothing else is called.
  // Whose turn it is to write the record. Held while the disk works, and so never together with mutex_ for
  // longer than copying takes.
  absl::Mutex writing_ ABSL_ACQUIRED_BEFORE(mutex_);
  // Until its end is recorded: then its name, and the file of the record, may be another's.
  std::optional<SupervisedHold> hold_ ABSL_GUARDED_BY(writing_);

  mutable absl::Mutex mutex_;
  v1::SupervisedJobRecord record_ ABSL_GUARDED_BY(mutex_);
  // The disk was told its end, whether it took it or not.
  bool end_told_ ABSL_GUARDED_BY(mutex_);
  // Nothing is to be recorded any more.
  bool settled_ ABSL_GUARDED_BY(mutex_);
  RestartPoints points_ ABSL_GUARDED_BY(mutex_){&record_};  // of the record
  const char* phase_ ABSL_GUARDED_BY(mutex_) = "running";
  int64_t next_checkpoint_unix_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  double interval_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  bool leave_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration stop_grace_ ABSL_GUARDED_BY(mutex_);
  bool stop_checkpoint_ ABSL_GUARDED_BY(mutex_) = false;
  std::string stop_image_ ABSL_GUARDED_BY(mutex_);
  absl::Status stop_error_ ABSL_GUARDED_BY(mutex_);
  // Why there is no last image of one that is stopped all the same.
  absl::Status no_stop_image_ ABSL_GUARDED_BY(mutex_);
  uint64_t images_asked_ ABSL_GUARDED_BY(mutex_) = 0, images_answered_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status last_image_ ABSL_GUARDED_BY(mutex_);
  ImageVisits visits_{[wakeup = wakeup_] { wakeup->Notify(); }};
  std::thread thread_;
};

}  // namespace rekindle::daemon
