# REKINDLE_VERSION: the release, and which state of the sources this is: 0.1.0+20261129.g7ea3d0a3. Two builds that differ
# can be told apart: by `rekindle version`, by metrics, by the names of bundles. Sources that are neither a clone nor what
# `git archive` made have the release alone.
set(_commit "")
set(_git git -c safe.directory=${CMAKE_SOURCE_DIR} -C ${CMAKE_SOURCE_DIR})
if(EXISTS ${CMAKE_SOURCE_DIR}/.git)
  execute_process(COMMAND ${_git} log -1 --abbrev=8 --format=%cs.g%h
    OUTPUT_VARIABLE _commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  execute_process(COMMAND ${_git} rev-parse --path-format=absolute --git-path logs/HEAD
    OUTPUT_VARIABLE _log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  # Another commit is another version.
  if(_log AND EXISTS ${_log})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_log})
  endif()
else()
  file(READ ${CMAKE_CURRENT_LIST_DIR}/archived_commit.txt _commit)
  string(STRIP "${_commit}" _commit)
endif()
set(REKINDLE_VERSION ${PROJECT_VERSION})
string(REPLACE "-" "" _commit "${_commit}")
if(_commit MATCHES "^[0-9]+\\.g[0-9a-f]+$")
  string(APPEND REKINDLE_VERSION "+${_commit}")
endif()
