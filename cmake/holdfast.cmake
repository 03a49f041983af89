# Helpers used by every folder. Sources are always listed by name: a test that is not listed is not a test.
#
#   holdfast_library(NAME  SRCS a.cc b.cc  DEPS x y)          static library holdfast_NAME, alias holdfast::NAME
#   holdfast_binary(NAME   SRCS main.cc    DEPS x y)          executable NAME in bin/
#   holdfast_test(NAME     SRCS x_test.cc  DEPS x  LABEL unit [TIMEOUT seconds] [ENV A=b])   ctest NAME

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

if(HOLDFAST_SANITIZE)
  add_compile_options(-fsanitize=${HOLDFAST_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HOLDFAST_SANITIZE})
endif()

# Warnings are errors for our own targets only; third-party headers come in as SYSTEM.
add_library(holdfast_options INTERFACE)
target_include_directories(holdfast_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(holdfast_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(holdfast_options INTERFACE -Wthread-safety)
endif()
find_package(Threads REQUIRED)
target_link_libraries(holdfast_options INTERFACE Threads::Threads)

function(holdfast_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(holdfast_${name} STATIC ${ARG_SRCS})
  target_link_libraries(holdfast_${name} PUBLIC ${ARG_DEPS} PRIVATE holdfast_options)
  target_include_directories(holdfast_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  add_library(holdfast::${name} ALIAS holdfast_${name})
endfunction()

function(holdfast_binary name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE holdfast_options ${ARG_DEPS})
endfunction()

function(holdfast_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SRCS;DEPS;ENV" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE holdfast_options ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(ARG_ENV)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${ARG_ENV}")
  endif()
endfunction()
