"""RocketMQ's keys that are no settings here, and why. A file that holds them is still taken.

They are those of the broker (4.9 to 5.4) and of the name server.
"""

from __future__ import annotations

_UNUSED_BY_REASON = {
    "one loop serves all requests, there are no pools of threads": """
        ackMessageThreadPoolNums adminBrokerThreadPoolNums batchDispatchRequestThreadPoolNums
        clientManageThreadPoolNums clientRequestThreadPoolNums consumerManageThreadPoolNums
        defaultThreadPoolNums dispatchCqCacheNum dispatchCqThreads enableAsyncReput
        enableBuildConsumeQueueConcurrently endTransactionThreadPoolNums heartbeatThreadPoolNums
        litePullMessageThreadPoolNums loadBalanceProcessorThreadPoolNums processReplyMessageThreadPoolNums
        pullMessageThreadPoolNums putMessageFutureThreadPoolNums queryMessageThreadPoolNums
        recoverConcurrently recoverThreadPoolNums sendMessageThreadPoolNums""",
    "these requests are answered at once and never queue": """
        ackThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity
        clientRequestThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
        defaultThreadPoolQueueCapacity endTransactionPoolQueueCapacity heartbeatThreadPoolQueueCapacity
        loadBalanceThreadPoolQueueCapacity putThreadPoolQueueCapacity replyThreadPoolQueueCapacity
        unRegisterBrokerQueueCapacity waitTimeMillsInAckQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInTransactionQueue""",
    "lite pulls share the queue of pulls": "litePullThreadPoolQueueCapacity waitTimeMillsInLitePullQueue",
    "the network layer is not Netty": """
        clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
        clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
        clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads connectTimeoutMillis
        channelNotActiveInterval disableCallbackExecutor disableNettyWorkerGroup
        enableFastChannelEventProcess enableNetWorkFlowControl enableReconnectForGoAway
        maxReconnectIntervalTimeSeconds printChannelGroups printChannelGroupsMinNum
        serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable
        serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
        serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads
        socksProxyConfig transferMsgByHeap useEpollNativeSelector writeBufferHighWaterMark
        writeBufferLowWaterMark""",
    "the log is written by one thread, without locks and without a pool of buffers": """
        asyncSendEnable commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
        debugLockEnable dispatchFromSenderThread fastFailIfNoBufferInStorePool highSpeedMode
        maxAsyncPutMessageRequests putMessageTimeout spinLockCollisionRetreatOptimalDegree
        topicQueueLockNum transientStorePoolEnable transientStorePoolSize useABSLock
        useReentrantLockWhenPutMessage wakeCommitWhenPutMessage""",
    "files are written by system calls and read through maps that the kernel manages": """
        cleanSwapedMapInterval commitLogForceSwapMapInterval commitLogSwapMapInterval
        commitLogSwapMapReserveFileNum dataReadAheadEnable destroyMapedFileIntervalForcibly
        flushLeastPagesWhenWarmMapedFile logicQueueForceSwapMapInterval logicQueueSwapMapInterval
        logicQueueSwapMapReserveFileNum mappedFileSwapEnable putConsumeQueueDataByFileChannel
        redeleteHangedFileInterval warmMapedFileEnable writeWithoutMmap""",
    "the store flushes, checks, scans and cleans by its own rules": """
        accessMessageInMemoryHotRatio checkCRCOnRecover cleanFileForciblyEnable
        correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
        deleteConsumeQueueFilesInterval diskFallRecorded enableAcceleratedRecovery
        enableLogConsumeQueueRepeatedlyBuildWhenRecover enableRunningFlagsInFlush estimateAccumulation
        flushCommitLogTimed flushConsumeQueueLeastPages logicalDiskSpaceCleanForciblyThreshold
        maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan maxRecoveryCommitlogFiles
        messageIndexSafe pullBatchMaxMessageCount putMsgIndexHightWater readUnCommitted
        recheckReputOffsetFromCq sampleCountThreshold sampleSteps travelCqFileNumWhenGetMessage
        useStaticSubscription wakeFlushWhenPutMessage""",
    "topics longer than 127 bytes get the newer form of record by themselves": """
        autoMessageVersionOnTopicLen maxTopicLength""",
    "queues are files, never RocksDB": """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin
        combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes
        combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType configManagerVersion enableRocksDBLog
        flushConsumerOffsetHistoryInterval memTableFlushIntervalMs realTimePersistRocksDBConfig
        rocksdbCQDoubleWriteEnable rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec""",
    "batch queues are not served yet": "mapperFileSizeBatchConsumeQueue searchBcqByCacheEnable",
    "compaction topics are not served yet": """
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
        enableCompaction maxOffsetMapSize""",
    "messages timed to the second are refused until they are served": """
        allowRecallWhenBrokerNotWriteable disappearTimeAfterStart mappedFileSizeTimerLog maxDelayTime
        recallMessageEnable timerCheckMetricsWhen timerColdDataCheckIntervalMs timerCongestNumEachSlot
        timerEnableCheckMetrics timerEnableDisruptor timerEnableRetryUntilSuccess timerFlushIntervalMs
        timerGetMessageThreadNum timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold
        timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum timerRollWindowSlot
        timerSkipUnknownError timerStopDequeue timerStopEnqueue timerWarmEnable timerWheelEnable""",
    "delayed messages are delivered in order, one level after the other": """
        enableScheduleAsyncDeliver enableScheduleMessageStats scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked""",
    "half messages are refused until transactions are served": """
        enableRegisterProducer rejectTransactionMessage transactionCheckInterval transactionCheckMax
        transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize
        transactionTimeOut""",
    "SQL92 filters are refused until they are served": """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap enableConsumeQueueExt enablePropertyFilter
        expectConsumerNumUseFilter filterDataCleanTimeSpan filterSupportRetry
        mappedFileSizeConsumeQueueExt maxErrorRateOfBloomFilter""",
    "pop consumption is not served yet": """
        appendAckAsync appendCkAsync defaultMessageRequestMode defaultPopShareQueueNum enableBatchPush
        enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
        enablePopBufferMerge enablePopLog enablePopMessageThreshold enableRetryTopicV2
        enableSkipLongAwaitingAck initPopOffsetByCheckMsgInMem isEnableBatchPush
        loadBalancePollNameServerInterval maxPopPollingSize popCkMaxBufferSize popCkOffsetMaxQueueSize
        popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable
        popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability
        popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds
        popPollingMapSize popPollingSize popResponseReturnActualRetryTopic popReviveMaxAttemptTimes
        popReviveMaxReturnSizePerRead retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval
        reviveMaxSlow reviveScanTime serverLoadBalancerEnable skipWhenCKRePutReachMaxTimes""",
    "requests with replies are not served yet": "storeReplyMessageEnable",
    "replication is not served yet": """
        allAckInSyncStateSet asyncLearner brokerElectionPriority brokerHeartbeatInterval
        brokerNotActiveTimeoutMillis checkSyncStateSetPeriod cleanOfflineBrokerInterval controllerAddr
        controllerHeartBeatTimeoutMills dLegerGroup dLegerPeers dLegerSelfId enableAutoInSyncReplicas
        enableRemoteEscape enableSplitMetadata fetchControllerAddrByDnsLookup haFlowControlEnable
        haHousekeepingInterval haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup
        haSendHeartbeatInterval haSlaveFallbehindMax haTransferBatchSize inSyncReplicas lockInStrictMode
        maxHaTransferByteInSecond maxSlaveResendLength minInSyncReplicas offsetCheckInSlave
        preferredLeaderId replicasPerDiskPartition sendHeartbeatTimeoutMillis skipPreOnline slaveTimeout
        splitMetadataSize storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile
        syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod syncFromLastFile
        syncMasterFlushOffsetWhenStartup totalReplicas""",
    "the broker always registers all topics with all name servers, and new ones by themselves": """
        compatibleWithOldNameSrv compressedRegister enableSingleTopicRegister enableSplitRegistration
        isScanAvailableNameSrv splitRegistrationSize updateNameServerAddrPeriod""",
    "name servers are listed in namesrvAddr": """
        fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval""",
    "static topics are not served yet": "forwardTimeout",
    "the gRPC proxy is not served yet": """
        broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond enableBroadcastOffsetStore""",
    "groups that fall behind are not disabled, and reads of cold data not throttled": """
        cgColdReadThreshold coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable
        consumerFallbehindThreshold disableConsumeIfConsumerReadSlowly enableCleanExpiredOffset
        globalColdReadThreshold usePIDColdCtrStrategy""",
    "members of a group are told of changes at once": "realTimeNotifyConsumerChange",
    "statistics are always kept, and only of what is in use": """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats commercialBaseCount
        commercialBigCount commercialEnable commercialSizePerMsg commercialTimerCount commercialTransCount
        enableDetailStat enableLmqStats maxStatsIdleTimeInMinutes""",
    "metrics are always served for Prometheus, on metricsPromExporterPort": """
        enableConnectionMetrics enableLagAndDlqMetrics enableMessageStoreMetrics enablePopMetrics
        enableRemotingMetrics enableRequestMetrics enableStatsMetrics enableTransactionMetrics
        metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
        metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader
        metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
        metricsPromExporterHost""",
    "there are no light queues": "maxLmqConsumeQueueNum",
    "there are no filter servers": "filterServerNums",
    "there is no container of several brokers": "isBrokerContainer isInBrokerContainer",
    "logs are configured on the command line": "isolateLogEnable",
    "a server closes within shutdownTimeout": "enableShutdownGracefully shutdownWaitTimeSeconds",
    "nothing is read from there": "clusterTest productEnvName rocketmqHome",
    "a name server does not look after the replicas of brokers": """
        enableControllerInNamesrv notifyMinBrokerIdChanged supportActingMaster""",
    "which keys of a name server cannot change is fixed": "configBlackList",
    "access control is not served yet": """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath
        authenticationMetadataProvider authenticationProvider authenticationStrategy
        authenticationWhitelist authorizationMetadataProvider authorizationProvider authorizationStrategy
        authorizationWhitelist clusterName configName initAuthenticationUser
        innerClientAuthenticationCredentials migrateAuthFromV1Enabled
        statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum userCacheExpiredSecond
        userCacheMaxNum userCacheRefreshSecond""",
}

UNUSED_KEYS = {key: reason for reason, keys in _UNUSED_BY_REASON.items() for key in keys.split()}
"""Key to reason: without effect, worth a warning."""

_OFF = ("false", "")
REFUSED_KEYS: dict[str, tuple[tuple[str, ...], str]] = {
    "aclEnable": (_OFF, "access control is not served yet, and clients would not be checked"),
    "authenticationEnabled": (_OFF, "access control is not served yet, and clients would not be checked"),
    "authorizationEnabled": (_OFF, "access control is not served yet, and clients would not be checked"),
    "brokerId": (("0",), "a broker is a master, number 0, until replication is served"),
    "brokerRole": (("async_master",), "a broker is a master without slaves until replication is served"),
    "duplicationEnable": (_OFF, "replication is not served yet"),
    "enableControllerMode": (_OFF, "replication is not served yet"),
    "enableDLegerCommitLog": (_OFF, "replication is not served yet"),
    "enableLmq": (_OFF, "there are no light queues, and messages for them would be lost"),
    "enableMultiDispatch": (_OFF, "there are no light queues, and messages for them would be lost"),
    "enableSlaveActingMaster": (_OFF, "replication is not served yet"),
    "messageStorePlugIn": (("",), "the store takes no plug-ins"),
    "readOnlyCommitLogStorePaths": (("",), "a commit log lies in one directory"),
    "storeType": (("default",), "queues are files, never RocksDB"),
    "useTLS": (_OFF, "connections are not encrypted yet"),
}
"""Key to harmless values and reason: with another value the server would do less than it was asked to."""
